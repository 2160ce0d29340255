"""The model: stages, depth, truncation, padding, compile-free invariants."""

import pytest
import torch

from loopwise.config import InputError, ModelConfig
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

TINY = dict(vocab_size=61, d_model=32, num_heads=4, d_ff=48, prelude_layers=1, core_layers=2, coda_layers=1, context=32)


def make(seed: int = 0, **changes) -> RecurrentLM:
    return RecurrentLM(ModelConfig(**{**TINY, **changes})).initialise(seed).eval()


VARIANTS = [
    {},
    {"norm": "pre"},
    {"norm": "post"},
    {"norm": "residual"},
    {"injection": "add"},
    {"injection": "diagonal"},
    {"injection": "none", "state_init": "embed"},
    {"state_init": "normal", "state_norm": True, "prelude_norm": True},
    {"num_kv_heads": 2, "qk_norm": "head", "attention_bias": True},
    {"num_kv_heads": 1, "qk_norm": "full", "rope": "adjacent"},
    {"mlp": "relu2", "tied": False, "embed_scale": 5.0, "head_dim": 16},
    {"prelude_layers": 0, "coda_layers": 0},
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
    {"windows": (3, 0, 5, 7)},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_deeper_run_passes_through_the_shallower_one(changes):
    """Depth 1..N of a longer run equal the shorter run, for every wiring."""
    model, tokens = make(**changes), torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ctx = DenseCausal.over(tokens)
        e = model.prelude(tokens, ctx)
        s = model.init_state(e, ctx)
        for depth in range(1, 5):
            ctx.depth = depth
            s = model.core(s, e, ctx)
            assert torch.equal(model.coda(s, ctx), model(tokens, depth))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_causal(changes):
    """A later token never changes an earlier one's logits."""
    model, tokens = make(**changes), torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(2))
    other = tokens.clone()
    other[0, 10:] = (other[0, 10:] + 7) % 61
    with torch.no_grad():
        a, b = model(tokens, 3), model(other, 3)
    assert torch.equal(a[0, :10], b[0, :10])
    assert not torch.allclose(a[0, 10:], b[0, 10:])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_padding_changes_nothing(changes, side):
    """A padded batch gives each row what it gives alone, to 1e-5."""
    model, generator = make(**changes), torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 61, (n,), generator=generator) for n in (5, 12, 9)]
    width = max(map(len, rows))
    tokens, valid = torch.zeros(3, width, dtype=torch.long), torch.zeros(3, width, dtype=torch.bool)
    for i, row in enumerate(rows):
        where = slice(width - len(row), None) if side == "left" else slice(0, len(row))
        tokens[i, where], valid[i, where] = row, True
    with torch.no_grad():
        together = model(tokens, 4, valid=valid)
        for i, row in enumerate(rows):
            torch.testing.assert_close(together[i, valid[i]], model(row[None], 4)[0], atol=1e-5, rtol=0)


def test_truncated_backprop_keeps_injected_in_the_graph():
    """The state is detached at the boundary, yet the prelude still learns through `e` of the last passes."""
    model, tokens = make().train(), torch.randint(0, 61, (1, 8))
    full, cut = model(tokens, 6), model(tokens, 6, backprop_depth=2)
    assert torch.equal(full, cut)
    cut.sum().backward()
    prelude = model.prelude_blocks[0].mlp.down.weight.grad
    assert prelude is not None and prelude.abs().sum() > 0
    deep = model.recurrence.blocks[0].mlp.down.weight.grad.clone()
    model.zero_grad()
    model(tokens, 6).sum().backward()
    assert not torch.allclose(deep, model.recurrence.blocks[0].mlp.down.weight.grad)


def test_recompute_gives_the_same_gradient():
    model, tokens = make().train(), torch.randint(0, 61, (1, 8))
    model(tokens, 3).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.recurrence.recompute = True
    model(tokens, 3).square().mean().backward()
    for a, b in zip(plain, (p.grad for p in model.parameters()), strict=True):
        torch.testing.assert_close(a, b)


def test_normal_state_depends_on_position_not_on_the_batch():
    model, tokens = make(state_init="normal"), torch.randint(0, 61, (3, 10))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, 2)[1:2], model(tokens[1:2], 2), atol=1e-6, rtol=0)
    ctx = DenseCausal.over(tokens)
    state = model.init_state(model.prelude(tokens, ctx), ctx)
    assert torch.equal(state[0], state[2]) and not torch.equal(state[0, 0], state[0, 1])


def test_initialise_is_seeded():
    a, b, c = make(5), make(5), make(6)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.embedding.weight, c.embedding.weight)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"d_model": 30}, "d_model"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"core_layers": 0}, "core_layers"),
        ({"norm": "sandwhich"}, "sandwich"),
        ({"mean_depth": 0.5}, "mean_depth"),
        ({"norm_eps": 0.0}, "norm_eps"),
    ],
)
def test_bad_config_names_the_field(changes, field):
    with pytest.raises(InputError, match=field):
        ModelConfig(**{**TINY, **changes})


def test_config_round_trip_and_unknown_key():
    config = ModelConfig(**TINY)
    assert ModelConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match="did you mean 'd_model'"):
        ModelConfig.from_dict({**TINY, "d_modle": 3})
    with pytest.raises(InputError, match="missing key 'context'"):
        ModelConfig.from_dict({k: v for k, v in TINY.items() if k != "context"})
    with pytest.raises(InputError, match="'d_ff' is '48'"):
        ModelConfig.from_dict({**TINY, "d_ff": "48"})
