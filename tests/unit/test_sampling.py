"""Sampling: filters, penalties, counters."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.sampling import SamplingParams, penalise, sample, uniform


def test_uniform_is_pure_and_flat():
    values = torch.tensor([uniform(seed, p) for seed in range(20) for p in range(500)], dtype=torch.float64)
    assert uniform(3, 4) == uniform(3, 4) and uniform(3, 4) != uniform(4, 3)
    assert 0 <= values.min() and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    counts = torch.histc(values, 20, 0, 1)
    assert ((counts - 500) ** 2 / 500).sum() < 50  # chi-square, 19 degrees of freedom: p < 1e-4


def test_greedy_is_argmax():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    assert sample(logits, [SamplingParams()] * 4, [0.5] * 4).tolist() == logits.argmax(-1).tolist()


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(0, 5),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
    temperature=st.floats(0.1, 3),
    u=st.floats(0, 0.999999),
)
def test_filters_against_a_plain_loop(seed, top_k, top_p, min_p, temperature, u):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = int(sample(logits, [params], [u])[0])
    ranked = sorted(enumerate((logits[0].double() / temperature).tolist()), key=lambda x: -x[1])[: top_k or None]
    weights = torch.tensor([x for _, x in ranked], dtype=torch.float64).softmax(0).tolist()
    kept, mass = [], 0.0
    for (token, _), weight in zip(ranked, weights, strict=True):
        if mass < top_p and weight >= min_p * weights[0]:
            kept.append((token, weight))
        mass += weight
    target, total = u * sum(w for _, w in kept), 0.0
    chosen, weight = kept[-1]
    for chosen, weight in kept:  # noqa: B007  (both are read after the loop)
        total += weight
        if total > target:
            break
    assert got == chosen or min(abs(total - target), abs(total - weight - target)) < 1e-9


def test_rows_do_not_depend_on_each_other():
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=t, top_p=0.9) if t else SamplingParams() for t in (0, 1, 0.5, 0, 2, 1)]
    us = [uniform(7, i) for i in range(6)]
    together = sample(logits, params, us).tolist()
    assert together == [int(sample(logits[i : i + 1], params[i : i + 1], us[i : i + 1])[0]) for i in range(6)]


def test_frequencies_follow_the_distribution():
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log()
    n = 4000
    drawn = sample(logits.expand(n, 3), [SamplingParams(temperature=1.0)] * n, [uniform(0, i) for i in range(n)])
    share = torch.bincount(drawn, minlength=3) / n
    torch.testing.assert_close(share, torch.tensor([0.5, 0.2, 0.3]), atol=0.03, rtol=0)


def test_penalties_and_bias():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0])
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 4.0})
    out = penalise(logits, params, prompt=[0], output=[1, 1])
    torch.testing.assert_close(out, torch.tensor([1.0, -4.0 - 0.5 - 0.5, 1.0, 4.0]))
    assert logits[0] == 2.0  # the input is left alone
    with pytest.raises(InputError, match="logit_bias"):
        penalise(logits, SamplingParams(logit_bias={9: 1.0}), [], [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_p", 2),
        ("max_tokens", 0),
        ("temperature", float("nan")),
        ("presence_penalty", 3),
        ("n", 0),
    ],
)
def test_bad_values_name_the_field(field, value):
    with pytest.raises(InputError, match=field):
        SamplingParams(**{field: value})


def test_empty_stop_is_refused():
    with pytest.raises(InputError, match="stop"):
        SamplingParams(stop=("",))
