"""What the fitted signals estimate, on a model small enough to compute it exactly."""

import numpy as np
import pytest
import torch

from loopwise.calibrate.fit import fit_probe
from loopwise.config import InputError
from loopwise.exit.look import FACTORS, RANK, Probe
from loopwise.exit.signals import SIGNALS, Look
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows

DEPTH = 4


def windows_of(tokens: int) -> Windows:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 61, 17).astype(np.int32) for _ in range(tokens // 16)]
    return Windows(ids=ids, document=np.arange(len(ids)), hashes=[str(i) for i in range(len(ids))], context=16)


@pytest.fixture
def fitted(make_model) -> tuple:
    model = make_model(d_model=16, num_heads=2)
    return model, fit_probe(model, windows_of(512), DEPTH, progress=lambda what, share: None)


def test_every_tensor_is_fitted_and_every_signal_runs(fitted):
    _, probe = fitted
    assert not probe.lacks(Probe._fields)
    assert all(getattr(probe, name).shape == (RANK, 16) for name in FACTORS)
    look = Look(torch.randn(5, 16), torch.randn(5, 16))
    for name in ("fisher", "fisher_raw", "sketch", "distil", "probe"):
        assert bool(SIGNALS[name].value(look, 3, probe).isfinite().all())


def test_raw_fisher_is_the_second_order_term_of_kl(fitted):
    """Through norm and head alone, averaged over states: ½ ΔᵀFΔ is KL(p(s + Δ) ‖ p(s)) for small Δ."""
    model, probe = fitted
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(4000, 16, generator=g)
    rows = rows / rows.square().mean(-1, keepdim=True).sqrt()
    change = 0.03 * torch.randn(1, 16, generator=g)
    p, q = (model.logits(model.final_norm(s)).log_softmax(-1) for s in (rows + change, rows))
    exact = (p.exp() * (p - q)).sum(-1).mean()
    estimate = 0.5 * (change @ probe.fisher_raw.T).square().sum()
    assert 0.4 < estimate / exact < 2.5  # states of the model, not of the sphere: the order of magnitude is what counts


def test_regression_predicts_log_kl(fitted):
    model, probe = fitted
    windows = windows_of(256)
    found = trace(model, windows, max_depth=DEPTH, signals=["kl", "distil"], probe=probe)
    truth, guess = (np.log(found.columns[n][1:].ravel() + 1e-12) for n in ("kl", "distil"))
    assert np.corrcoef(truth, guess)[0, 1] > 0.6


def test_too_little_text_is_refused(make_model):
    with pytest.raises(InputError, match="at least 512 with --fit-text"):
        fit_probe(make_model(), windows_of(64), DEPTH, progress=lambda what, share: None)
