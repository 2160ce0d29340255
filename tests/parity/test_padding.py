"""Left- and right-padded batches give what each row gives alone, for every wiring, dense and cached."""

import pytest
import torch

from loopwise.config import ModelConfig
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder
from loopwise.model.recurrent import RecurrentLM

BASE = {
    "vocab_size": 61,
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 48,
    "prelude_layers": 1,
    "core_layers": 2,
    "coda_layers": 1,
    "context": 32,
    "max_depth": 4,
}
WIRINGS = {
    "native": {},
    "huginn": {"norm": "residual", "coda_norm": True, "rope": "adjacent", "attention_bias": True, "embed_scale": 5.6},
    "ouro": {
        "prelude_layers": 0,
        "coda_layers": 0,
        "injection": "none",
        "state_init": "embed",
        "state_norm": True,
        "final_norm": False,
        "exit_gate": True,
        "num_kv_heads": 2,
    },
    "retrofit-llama": {"norm": "pre", "rope_scaling": "llama3", "rope_factor": 8.0, "num_kv_heads": 1},
    "retrofit-olmo": {"norm": "post", "qk_norm": "full"},
    "parcae": {
        "norm": "pre",
        "injection": "ssm",
        "mlp": "half_relu2",
        "coda_projection": True,
        "prelude_norm": True,
        "value_layers": (0, 2, 3),
        "value_gate": 8,
        "qk_norm": "rotated",
        "rope": "adjacent",
    },
    "nanochat": {
        "norm": "residual",
        "embed_norm": True,
        "state_norm": True,
        "state_init": "embed",
        "mlp": "relu2",
        "qk_norm": "rotated",
        "rope_dtype": "bfloat16",
        "logit_softcap": 15.0,
        "windows": (4, 6, 0, 9),
    },
    "random-state": {"state_init": "normal"},
}


def model_of(name: str) -> RecurrentLM:
    return RecurrentLM(ModelConfig(**{**BASE, **WIRINGS[name]})).initialise(0).eval()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", WIRINGS)
def test_padding_changes_nothing(name, side):
    model, lengths = model_of(name), (13, 9, 4)
    rows = [torch.randint(0, 61, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]
    tokens = torch.full((3, 13), 7)
    valid = torch.zeros(3, 13, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(13 - len(row), 13) if side == "left" else slice(0, len(row))
        tokens[i, place], valid[i, place] = row, True
    with torch.no_grad():
        padded = model(tokens, 3, valid=valid)
        for i, row in enumerate(rows):
            assert (padded[i][valid[i]] - model(row[None], 3)[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("name", WIRINGS)
def test_cached_decoding_equals_the_whole_sequence(name):
    """Value embeddings, windows and all: prefill in chunks and single steps against one dense pass."""
    model = model_of(name)
    tokens = torch.randint(0, 61, (14,), generator=torch.Generator().manual_seed(5)).tolist()
    decoder = Decoder(model, Policy.parse("depth=3"), length=14, chunk=5)
    with torch.no_grad():
        whole = model(torch.tensor([tokens]), 3)[0]
        cached = [decoder.prefill(tokens[:9])] + [decoder.step(t)[0] for t in tokens[9:]]
    assert (torch.stack(cached) - whole[8:]).abs().max() <= 1e-5
