"""Keys and buckets."""

import pytest

from loopwise.config import InputError
from loopwise.serve import edge
from loopwise.serve.edge import Bucket, Keys
from loopwise.serve.settings import ServeConfig


def test_keys():
    keys = Keys(["first-key", "second-key"])
    assert keys.find(b"Bearer first-key") == 0 and keys.find(b"bearer  second-key ") == 1
    for wrong in (None, b"", b"first-key", b"Basic first-key", b"Bearer first", b"Bearer first-key2", b"Bearer \xff"):
        assert keys.find(wrong) is None
    assert not Keys([])


def test_bucket(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(edge, "_CLOCK", lambda: now[0])
    bucket = Bucket(60)
    assert [bucket.wait() for _ in range(60)] == [0.0] * 60
    assert bucket.wait() == pytest.approx(1.0)
    now[0] += 2
    assert [bucket.wait() == 0 for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "wrong", [{"name": "a:b"}, {"name": ""}, {"keys": ("short",)}, {"max_waiting": 0}, {"rate": -1}]
)
def test_settings(wrong):
    with pytest.raises(InputError):
        ServeConfig(**{"name": "m", **wrong})
    assert "secret-key" not in repr(ServeConfig(name="m", keys=("secret-key",)))
