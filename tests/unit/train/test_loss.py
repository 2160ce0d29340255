"""The objective, and what mixed precision and compilation must not change about it."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from loopwise.data.tokenizer import Tokenizer
from loopwise.model.recurrent import RecurrentLM
from loopwise.recipes.catalog import recipe
from loopwise.train.loss import objective
from loopwise.train.sample import sampler

TOKENS = torch.randint(0, 512, (2, 17), generator=torch.Generator().manual_seed(0))


class Held:
    def batch(self, step: int) -> torch.Tensor:
        return TOKENS % 256


def _gradients(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    model = RecurrentLM(recipe("micro").model).initialise(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        objective(model(TOKENS[:, :-1], 6, backprop_depth=2), TOKENS[:, 1:]).total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_bf16_reaches_every_weight_although_frozen_passes_come_first() -> None:
    """Autocast caches its casts of weights: one made in a pass without gradients must not serve the later passes."""
    exact, low = _gradients(torch.float32), _gradients(torch.bfloat16)
    assert exact.keys() == low.keys()
    for name, gradient in exact.items():
        assert torch.linalg.vector_norm(low[name] - gradient) < 0.1 * torch.linalg.vector_norm(gradient), name


def test_z_loss() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64)
    targets = torch.randint(0, 5, (2, 3))
    plain, with_z = objective(logits, targets), objective(logits, targets, 0.5)
    assert with_z.nats == plain.nats == plain.total
    assert with_z.total.item() == pytest.approx(plain.nats.item() + 0.5 * logits.logsumexp(-1).square().mean().item())


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it, we do not
def test_a_compiled_pass_has_two_graphs_in_training() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = RecurrentLM(recipe("micro").model).initialise(0)
    model.compile_core(backend="eager")
    for depth in (2, 5, 9):
        backprop = 3 if depth > 3 else None
        objective(model(TOKENS[:, :-1], depth, backprop_depth=backprop), TOKENS[:, 1:]).total.backward()
    assert counters["stats"]["unique_graphs"] == 2
    torch._dynamo.reset()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_decoding_while_training_compiles_nothing() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = RecurrentLM(recipe("micro").model).initialise(0)
    model.compile_core(backend="eager")
    compiled = model.recurrence.pass_once
    tokenizer = Tokenizer.train(["the quick brown fox jumps over the lazy dog"] * 4, vocab_size=300)
    assert "|" in sampler(tokenizer, Held())(model.eval())
    assert counters["stats"]["unique_graphs"] == 0
    assert model.recurrence.pass_once is compiled
    model(TOKENS, 2)
    assert counters["stats"]["unique_graphs"] == 1  # the counter does count
    torch._dynamo.reset()


def test_weights_choose_what_counts() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, targets = torch.randn(2, 5, 11, generator=generator), torch.randint(0, 11, (2, 5), generator=generator)
    even = torch.full((2, 5), 0.5)
    assert torch.allclose(objective(logits, targets, weights=even).nats, objective(logits, targets).nats)
    first = torch.zeros(2, 5)
    first[:, 0] = 3.0
    assert torch.allclose(objective(logits, targets, weights=first).nats, objective(logits[:, :1], targets[:, :1]).nats)
