"""Traces against the parallel pass and against the signals computed by hand; chunks change nothing."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import loopwise.measure.trace as module
from loopwise.config import InputError
from loopwise.exit.signals import SIGNALS, Look
from loopwise.measure.trace import fixed_depth_nll, load_trace, passes, save_trace, trace

NAMES = ("kl", "kl_prev", "entropy", "margin", "rel_change", "cosine", "accel")


def test_loss_and_top1_equal_the_parallel_pass(make_model, make_windows):
    model, windows = make_model(), make_windows()
    found = trace(model, windows, max_depth=5)
    for depth in (1, 3, 5):
        for w, ids in enumerate(windows.ids):
            rows = windows.offsets[w] + np.arange(len(ids) - 1)
            logits = model(torch.tensor(ids[None, :-1]).long(), depth)[0]
            nll = F.cross_entropy(logits, torch.tensor(ids[1:]).long(), reduction="none")
            np.testing.assert_allclose(found.at("nll", depth)[rows], nll.numpy(), atol=2e-5)
            np.testing.assert_array_equal(found.at("top1", depth)[rows], logits.argmax(-1).numpy())
        np.testing.assert_allclose(fixed_depth_nll(model, windows, depth), found.at("nll", depth), atol=2e-5)


def test_signals_are_those_of_the_table(make_model, make_windows):
    """Record by hand, one window alone, and look every signal up."""
    model, windows = make_model(), make_windows()
    found = trace(model, windows, max_depth=5)
    tokens, before = torch.tensor(windows.ids[0][None, :-1]).long(), None
    rows = slice(0, windows.lengths[0])
    with torch.inference_mode():
        for depth, state, prev, prev2, ctx in passes(model, tokens, 5):
            log_probs = model.coda(state, ctx)[0].log_softmax(-1)
            look = Look(state[0], prev[0], prev2[0], log_probs, before)
            for name in (*NAMES, "argmax"):
                if depth >= SIGNALS[name].first_depth:
                    value = SIGNALS[name].value(look, depth, None).numpy()
                    np.testing.assert_allclose(found.at(name, depth)[rows], value, atol=1e-5, rtol=1e-4, err_msg=name)
                elif name != "argmax":
                    assert np.isnan(found.at(name, depth)).all()
            before = log_probs


def test_chunks_change_nothing(make_model, make_windows, monkeypatch):
    model, windows = make_model(), make_windows()
    whole = trace(model, windows, max_depth=4)
    monkeypatch.setattr(module, "READOUT_VALUES", 61 * 16)
    told = []
    parts = trace(model, windows, max_depth=4, batch_tokens=7, progress=told.append)
    assert sum(told) == windows.num_tokens
    for name, values in whole.columns.items():
        np.testing.assert_allclose(parts.columns[name], values, atol=2e-5, rtol=1e-3)


def test_a_longer_run_begins_with_the_shorter_one(make_model, make_windows):
    model, windows = make_model(), make_windows()
    short, long = (trace(model, windows, max_depth=d) for d in (3, 6))
    for name, values in short.columns.items():
        np.testing.assert_array_equal(long.columns[name][:3], values)


def test_large_columns_live_on_disk(make_model, make_windows, monkeypatch):
    model, windows = make_model(), make_windows()
    inside = trace(model, windows, max_depth=3)
    monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    outside = trace(model, windows, max_depth=3)
    assert isinstance(outside.columns["nll"], np.memmap)
    np.testing.assert_array_equal(outside.columns["kl"], inside.columns["kl"])


def test_only_what_is_asked_for_is_recorded(make_model, make_windows):
    found = trace(make_model(), make_windows(), max_depth=3, signals=["accel"])
    assert set(found.columns) == {"nll", "top1", "accel"}
    assert found.has("argmax")
    with pytest.raises(InputError, match="no column 'kl'"):
        found.at("kl", 2)


def test_saved_traces_come_back(make_model, make_windows, tmp_path):
    found = trace(make_model(), make_windows(), max_depth=4)
    back = load_trace(save_trace(tmp_path / "trace.npz", found, vocab_size=61))
    assert back.max_depth == 4
    assert back.digest == found.digest
    assert back.columns["top1"].dtype == np.uint16
    assert back.columns["kl"].dtype == np.float16
    np.testing.assert_array_equal(back.columns["nll"], found.columns["nll"])
    np.testing.assert_array_equal(back.columns["top1"], found.columns["top1"])
    np.testing.assert_allclose(back.columns["kl"], found.columns["kl"], rtol=1e-3)
    for name, values in found.index.items():
        np.testing.assert_array_equal(back.index[name], values)
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.npz"]


def test_damaged_and_missing_traces_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_trace(tmp_path / "trace.npz")
    (tmp_path / "trace.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InputError, match="cannot be read as a trace"):
        load_trace(tmp_path / "trace.npz")


@pytest.mark.parametrize("depth", [0, 8])
def test_depths_out_of_range_are_named(depth, make_model, make_windows):
    with pytest.raises(InputError, match=f"max-depth is {depth}: use 1 to 7"):
        trace(make_model(), make_windows(), max_depth=depth)


def test_a_softcap_is_part_of_the_readout(make_model, make_windows):
    model, windows = make_model(logit_softcap=2.0), make_windows()
    logits = model(torch.tensor(windows.ids[0][None, :-1]).long(), 2)[0]
    nll = F.cross_entropy(logits, torch.tensor(windows.ids[0][1:]).long(), reduction="none")
    found = trace(model, windows, max_depth=2, signals=["kl"])
    np.testing.assert_allclose(found.at("nll", 2)[: len(nll)], nll.numpy(), atol=2e-5)
