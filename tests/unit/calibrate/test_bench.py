"""The benchmarks of signals: what they report, and the arithmetic of net saving."""

import pytest

from loopwise.calibrate.bench import bench_signal
from loopwise.calibrate.net import net
from loopwise.config import InputError
from loopwise.exit.signals import SIGNALS
from loopwise.recipes.catalog import recipe


def test_every_signal_is_timed_beside_a_core_pass(make_model):
    config = make_model().config
    result = bench_signal({"small": config}, batches=(1, 3), keys=5, repeats=2)
    arms = {(row["batch"], row["arm"]) for row in result["rows"]}
    assert arms == {(b, arm) for b in (1, 3) for arm in ("core pass", "readout", *SIGNALS)}
    row = next(r for r in result["rows"] if r["arm"] == "kl")
    assert row["flops"] > next(r for r in result["rows"] if r["arm"] == "readout")["flops"]
    assert all(row["value"] > 0 for row in result["rows"]) and result["manifest"]["hardware"]
    with pytest.raises(InputError, match="--keys is 99"):
        bench_signal({"small": config}, batches=(1,), keys=99, repeats=2)


def test_net_saving_on_the_studys_shape():
    """The figures of the study's depths: KL is a net loss, a latent signal keeps what the bound allows."""
    rows = {row["signal"]: row for row in net(recipe("base-135m").model)}
    assert rows["kl"]["speedup"] < 1 < rows["rel_change"]["speedup"]
    assert rows["rel_change"]["saving_of_bound"] > 0.99 and rows["rel_change"]["check_of_core_pass"] < 0.03
    assert rows["rel_change"]["bound"] == pytest.approx((132120576 + 8 * 115605504) / (132120576 + 4.94 * 115605504))
