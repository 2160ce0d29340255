"""Cost accounting against the model itself and torch's FLOP counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loopwise.config import ModelConfig
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import LAYOUTS
from loopwise.model.recurrent import RecurrentLM

BASE = dict(vocab_size=97, d_model=32, num_heads=4, d_ff=64, prelude_layers=1, core_layers=2, coda_layers=1, context=64)
SHAPES = [
    {},
    {"num_kv_heads": 2, "qk_norm": "head", "state_norm": True, "attention_bias": True},
    {"norm": "pre", "mlp": "relu2", "injection": "add", "tied": False},
    {"norm": "post", "injection": "diagonal", "qk_norm": "full", "prelude_norm": True},
    {"prelude_layers": 0, "coda_layers": 0, "injection": "none", "head_dim": 16},
    {
        "injection": "ssm",
        "mlp": "half_relu2",
        "core_d_ff": 40,
        "coda_projection": True,
        "value_layers": (0, 2, 3),
        "value_gate": 8,
        "qk_norm": "rotated",
        "logit_softcap": 5.0,
        "tied": False,
    },
    {"embed_norm": True, "coda_norm": True, "exit_gate": True, "rope_scaling": "llama3", "rope_factor": 8.0},
    {"final_norm": False, "state_norm": True, "rope_dtype": "bfloat16", "rope_scaling": "linear", "rope_factor": 2.0},
]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_parameters_by_stage(changes):
    config = ModelConfig(**{**BASE, **changes})
    assert Cost.of(config).params["total"] == sum(p.numel() for p in RecurrentLM(config).parameters())


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_flops_match_torch_to_one_percent(changes, depth):
    """The dense pass computes every (query, key) pair, so each token is charged for all 40 keys."""
    config = ModelConfig(**{**BASE, **changes})
    model, tokens = RecurrentLM(config).initialise(0), torch.zeros(2, 40, dtype=torch.long)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, depth)
    assert counter.get_total_flops() / tokens.numel() == pytest.approx(Cost.of(config).flops(depth, keys=40), rel=0.01)


def test_base_shape_reproduces_the_studys_bound():
    """2/8/2 blocks at d 768 with a tied vocabulary of 49,152: 1.50x at 4.94 of 8 loops."""
    config = ModelConfig(
        vocab_size=49152,
        d_model=768,
        num_heads=12,
        d_ff=2048,
        prelude_layers=2,
        core_layers=8,
        coda_layers=2,
        context=1024,
    )
    assert Cost.of(config).bound(4.94, 8) == pytest.approx(1.50, abs=0.005)


def test_readout_at_every_loop_turns_the_saving_into_a_loss():
    """A1 with coda and head at every loop costs more than uniform depth 8, although it saves 38% of the loops."""
    config = ModelConfig(
        vocab_size=49152,
        d_model=768,
        num_heads=12,
        d_ff=2048,
        prelude_layers=2,
        core_layers=8,
        coda_layers=2,
        context=1024,
    )
    cost = Cost.of(config)
    assert cost.flops(8) / cost.flops(4.94, readouts=4.94) == pytest.approx(0.95, abs=0.005)


def test_kv_bytes_by_layout():
    cost = Cost.of(ModelConfig(**BASE))
    by = {name: cost.kv_bytes(name, max_depth=8, mean_depth=4) for name in LAYOUTS}
    plane = 2 * 32 * 4
    assert by == {
        "depth_indexed": (2 + 2 * 8) * plane,
        "last_exited": (2 + 2 * 4) * plane,
        "shared": (2 + 2) * plane,
        "first_then_shared": (2 + 4) * plane,
    }
