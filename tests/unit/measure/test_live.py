"""Live evaluation is the reference decoder, many windows at a time."""

import numpy as np
import pytest
import torch

from loopwise.config import InputError
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Probe
from loopwise.generate import Decoder
from loopwise.measure.live import fitting, live
from loopwise.measure.replay import replay
from loopwise.measure.trace import trace
from loopwise.model.kv_layout import LAYOUTS, kv_layout

POLICIES = [
    "depth=3", "kl<0.25", "kl<0.3,every=2,min=3", "kl_prev<0.3,patience=2", "argmax<0.5", "entropy<3.92", "margin<0.99",
    "rel_change<1.05,max=5", "cosine<0.6,patience=2", "accel<1.9,min=2,max=6", "probe<0.5",
]  # fmt: skip


def make_probe(model) -> Probe:
    rng = torch.Generator().manual_seed(3)
    d = model.config.d_model
    weight = torch.randn(3, d, generator=rng)
    bias = torch.tensor([1.0, 0.0, -0.5])
    return Probe(weight=weight, bias=bias, mean=torch.zeros(d), scale=torch.full((d,), 2.0))


def decode(model, windows, policy, layout, probe):
    """One window at a time with the reference decoder."""
    nll, depths, readouts = [], [], []
    for ids in windows.ids:
        decoder = Decoder(model, policy, length=len(ids), layout=layout, probe=probe)
        for token, target in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
            logits, depth, reads = decoder.step(token)
            nll.append(-logits.log_softmax(-1)[target].item())
            depths.append(depth)
            readouts.append(reads)
    return np.array(nll), np.array(depths), np.array(readouts)


# Every policy under one layout, and those that take different paths through the decoder under the others.
CASES = [("depth_indexed", p) for p in POLICIES] + [
    (layout, p) for layout in LAYOUTS if layout != "depth_indexed" for p in (POLICIES[2], POLICIES[5], POLICIES[7])
]


@pytest.mark.parametrize(("layout", "text"), CASES)
def test_equals_the_reference_decoder(layout, text, make_model, make_windows):
    model, windows, policy = make_model(), make_windows(), Policy.parse(text)
    probe = make_probe(model)
    found = live(model, windows, policy, layout=layout, probe=probe, rows=2)
    nll, depths, readouts = decode(model, windows, policy, layout, probe)
    np.testing.assert_array_equal(found.depth, depths)
    np.testing.assert_array_equal(found.readouts, readouts)
    np.testing.assert_allclose(found.nll, nll, atol=2e-5)


def test_policies_of_the_table_really_leave_at_different_depths(make_model, make_windows):
    """The comparison above would say little if every token ran to the end."""
    model, windows = make_model(), make_windows()
    spread = [len(set(live(model, windows, Policy.parse(p), probe=make_probe(model)).depth.tolist())) for p in POLICIES]
    assert sum(n > 1 for n in spread) >= 8


@pytest.mark.parametrize(
    "changes",
    [
        {"state_init": "embed"},
        {"state_init": "normal"},
        {"windows": (0, 3, 2, 4)},
        {"value_layers": (0, 2), "value_gate": 8},
        {"logit_softcap": 5.0, "qk_norm": "rotated"},
    ],
    ids=str,
)  # fmt: skip
def test_other_wirings_agree_too(changes, make_model, make_windows):
    """Among them sliding windows, and values that depend on the token: what goes with a row must follow it."""
    model, windows, policy = make_model(**changes), make_windows(), Policy.parse("rel_change<1.05")
    found = live(model, windows, policy)
    nll, depths, _ = decode(model, windows, policy, "depth_indexed", None)
    np.testing.assert_array_equal(found.depth, depths)
    np.testing.assert_allclose(found.nll, nll, atol=2e-5)


@pytest.mark.parametrize("layout", ["depth_indexed", "last_exited"])
def test_uniform_depth_live_equals_replay(layout, make_model, make_windows):
    model, windows = make_model(), make_windows()
    found = live(model, windows, Policy.parse("depth=4"), layout=layout)
    recorded = replay(trace(model, windows, max_depth=5), Policy.parse("depth=4"))
    np.testing.assert_allclose(found.nll, recorded.nll, atol=2e-5)
    np.testing.assert_array_equal(found.top1, recorded.top1)
    np.testing.assert_array_equal(found.readouts, recorded.readouts)


def test_batch_mates_and_batch_size_change_nothing(make_model, make_windows):
    model, windows, policy = make_model(), make_windows(), Policy.parse("rel_change<1.05,max=5")
    alone = [live(model, windows.take(np.array([w])), policy) for w in range(len(windows.ids))]
    together = live(model, windows, policy)
    np.testing.assert_array_equal(together.depth, np.concatenate([a.depth for a in alone]))
    np.testing.assert_allclose(together.nll, np.concatenate([a.nll for a in alone]), atol=2e-5)


def test_plays_recorded_depths_back(make_model, make_windows):
    model, windows = make_model(), make_windows()
    depths = np.random.default_rng(0).integers(1, 6, windows.num_tokens)
    found = live(model, windows, Policy(recorded=tuple(depths.tolist())))
    np.testing.assert_array_equal(found.depth, depths)
    assert (found.readouts == 1).all()
    assert (found.checks == 0).all()


def test_bad_input_is_named(make_model, make_windows):
    model, windows = make_model(), make_windows()
    with pytest.raises(InputError, match="max depth 8 is out of range"):
        live(model, windows, Policy.parse("depth=8"))
    with pytest.raises(InputError, match="probe"):
        live(model, windows, Policy.parse("probe<0.5"))
    with pytest.raises(InputError, match="did you mean 'shared'"):
        live(model, windows, Policy.parse("depth=2"), layout="share")
    with pytest.raises(InputError, match="2 depths for 18 tokens"):
        live(model, windows, Policy(recorded=(1, 2)))


def test_the_cache_limit_sets_the_rows(make_model):
    model = make_model()
    deep, shared = kv_layout("depth_indexed"), kv_layout("shared")
    assert fitting(model, shared, 7, 32) > fitting(model, deep, 7, 32) >= 1
    assert fitting(model, deep, 7, 1 << 30) == 1
