"""Policy strings, rules and signals."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.exit.look import FACTORS, RANK
from loopwise.exit.policy import Policy
from loopwise.exit.rules import Below
from loopwise.exit.signals import SIGNALS, Look, Probe, require, supported


@pytest.mark.parametrize(
    "text",
    [
        "kl<0.001,min=2,max=8",
        "depth=8",
        "rel_change<0.05",
        "accel<0.1,patience=2,every=3",
        "kl<0.001",
        "rel_change<0.2/0.1/0.05,lag=1",
    ],
)
def test_round_trip(text):
    assert str(Policy.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lk<1e-3", "did you mean 'kl'"),
        ("kl", "not SIGNAL<THRESHOLD"),
        ("kl<-1", "threshold is '-1'"),
        ("kl<nan", "threshold is 'nan'"),
        ("kl<x", "threshold is 'x'"),
        ("kl<1,mim=2", "did you mean 'min'"),
        ("kl<1,min=0", "min is '0'"),
        ("kl<1/x", "threshold is 'x'"),
        ("kl<1,lag=2", "lag is '2'"),
        ("kl<1,min=4,max=2", "min=4 is above max=2"),
        ("depth=0", "depth is '0'"),
        ("depth=4,min=2", "takes no options"),
        ("replay:/nowhere.json", "cannot be read"),
        ("", "not SIGNAL<THRESHOLD"),
    ],
)
def test_bad_policy_is_one_clear_line(text, says):
    with pytest.raises(InputError, match=says) as error:
        Policy.parse(text)
    assert "\n" not in str(error.value)


def test_bind_refuses_depth_beyond_the_model():
    with pytest.raises(InputError, match="use 1 to 8"):
        Policy.parse("depth=9").bind(8)
    with pytest.raises(InputError, match="min=6 is above"):
        Policy.parse("kl<1,min=6").bind(4)
    assert Policy.parse("kl<1").bind(8).max_depth == 8


def test_replay_file(tmp_path):
    path = tmp_path / "depths.json"
    path.write_text(json.dumps({"depths": [1, 3, 2]}))
    policy = Policy.parse(f"replay:{path}").bind(8)
    assert policy.recorded == (1, 3, 2)
    path.write_text("[0]")
    with pytest.raises(InputError, match="no list of depths"):
        Policy.parse(f"replay:{path}")


def exits(rule: Below, values: torch.Tensor) -> list[int]:
    """Exit depth per row for a [rows, depth] table of signal values."""
    carry, found = rule.init(len(values)), torch.zeros(len(values), dtype=torch.long)
    for depth in range(1, rule.max_depth + 1):
        leave, carry = rule.step(values[:, depth - 1], depth, carry)
        found = torch.where(leave & (found == 0), depth, found)
    return found.tolist()


def plain_exit(values: list[float], rule: Below) -> int:
    """The rule's docstring, written as a loop."""
    streak, threshold = 0, float(torch.tensor(rule.threshold, dtype=torch.float32))  # signals are fp32
    for depth in range(1, rule.max_depth):
        if depth >= rule.first_check and (depth - rule.first_check) % rule.every == 0:
            streak = streak + 1 if values[depth - 1] < threshold else 0
            if streak >= rule.patience:
                return depth
    return rule.max_depth


@given(
    table=st.lists(st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8), min_size=1, max_size=5),
    threshold=st.floats(0, 1),
    looser=st.floats(0, 1),
    low=st.integers(1, 8),
    patience=st.integers(1, 3),
    every=st.integers(1, 3),
)
def test_rule_is_what_it_says_and_looser_never_deepens(table, threshold, looser, low, patience, every):
    values = torch.tensor(table)

    def rule(limit: float) -> Below:
        return Below(
            threshold=limit, min_depth=low, max_depth=8, patience=patience, every=every, first_check=max(low, 2)
        )

    tight = exits(rule(threshold), values)
    assert tight == [plain_exit(row.tolist(), rule(threshold)) for row in values]
    assert all(a <= b for a, b in zip(exits(rule(threshold + looser), values), tight, strict=True))


def test_rule_takes_rows_of_different_depth():
    """An engine steps rows of any depth together: same decisions as one row at a time."""
    rule = Below(threshold=0.5, min_depth=2, max_depth=6, patience=2, first_check=2)
    depth, carry = torch.tensor([1, 2, 3, 6]), torch.tensor([0, 0, 1, 0], dtype=torch.int32)
    leave, new = rule.step(torch.tensor([0.1, 0.1, 0.1, 0.9]), depth, carry)
    assert leave.tolist() == [False, False, True, True]
    assert new.tolist() == [0, 1, 2, 0]


@given(
    table=st.lists(st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8), min_size=1, max_size=5),
    thresholds=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=4),
    every=st.integers(1, 3),
    patience=st.integers(1, 2),
)
def test_thresholds_by_check_and_lag(table, thresholds, every, patience):
    """A list of thresholds is read by check, the last one repeating; a lag adds one pass to every early exit."""
    first, *later = thresholds

    def rule(**more) -> Below:
        return Below(threshold=first, later=tuple(later), min_depth=1, max_depth=8, first_check=2, every=every,
                     patience=patience, **more)  # fmt: skip

    shifted = [[v - thresholds[min(max(d - 2, 0) // every, len(later))] for d, v in enumerate(row, 1)] for row in table]
    plain = Below(threshold=0.0, min_depth=1, max_depth=8, first_check=2, every=every, patience=patience)
    found = exits(rule(), torch.tensor(table))
    assert found == exits(plain, torch.tensor(shifted, dtype=torch.float64))
    assert exits(rule(lag=1), torch.tensor(table)) == [min(d + 1, 8) for d in found]


def test_missing_tensors_are_named():
    with pytest.raises(InputError, match="has no probe"):
        require("fisher<1", SIGNALS["fisher"], None)
    with pytest.raises(InputError, match="without 'distil_state'"):
        require("distil<1", SIGNALS["distil"], Probe(fisher=torch.ones(RANK, 8)))
    assert supported("rel_change", None) and supported("distil", make_probe()) and not supported("probe", Probe())


def look(rows: int = 5, d: int = 8, vocab: int = 11) -> Look:
    g = torch.Generator().manual_seed(0)

    def noise(n: int) -> torch.Tensor:
        return torch.randn(rows, n, generator=g)

    return Look(noise(d), noise(d), noise(d), noise(vocab).log_softmax(-1), noise(vocab).log_softmax(-1))


def make_probe(d: int = 8) -> Probe:
    g = torch.Generator().manual_seed(1)
    factors = [torch.randn(RANK, d, generator=g) for _ in FACTORS]
    terms = torch.randn(3, 4, generator=g) * 0.1
    return Probe(torch.ones(1, d), torch.zeros(1), torch.zeros(d), torch.ones(d), *factors, torch.ones(d) * 0.1, terms)


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_are_rowwise_and_finite(name):
    """Each row's value depends on that row alone, and settled rows give the smallest value."""
    x, signal = look(), SIGNALS[name]
    probe = make_probe()
    value = signal.value(x, 4, probe)
    assert value.shape == (5,) and bool(value.isfinite().all()) and value.dtype == torch.float32
    alone = torch.cat([signal.value(Look(*(t[i : i + 1] for t in x)), 4, probe) for i in range(5)])
    torch.testing.assert_close(value, alone)
    depth = torch.full((5,), 4)
    torch.testing.assert_close(value, signal.value(x, depth, probe))


@pytest.mark.parametrize("name", [n for n in SIGNALS if n not in ("entropy", "margin", "probe", "distil")])
def test_change_signals_are_zero_when_nothing_changes(name):
    x = look()
    still = Look(x.state, x.state, x.state, x.log_probs, x.log_probs)
    assert SIGNALS[name].value(still, 4, make_probe()).abs().max() < 1e-6


def test_kl_directions():
    x = look()
    p, q = x.log_probs.double(), x.prev_log_probs.double()
    torch.testing.assert_close(
        SIGNALS["kl"].value(x, 2, None).double(),
        torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1),
    )
    torch.testing.assert_close(
        SIGNALS["kl_prev"].value(x, 2, None).double(),
        torch.nn.functional.kl_div(p, q, log_target=True, reduction="none").sum(-1),
    )


def test_probe_uses_its_depths_row():
    x = look()
    probe = Probe(torch.stack([torch.zeros(8), torch.ones(8)]), torch.tensor([2.0, 0.0]), torch.zeros(8), torch.ones(8))
    assert torch.allclose(SIGNALS["probe"].value(x, 1, probe), torch.sigmoid(torch.tensor(2.0)))
    deep = torch.sigmoid(x.state.sum(-1))
    torch.testing.assert_close(SIGNALS["probe"].value(x, 9, probe), deep)
