"""The export under vLLM's Transformers backend: greedy tokens of the reference decoder. Skips where vLLM is absent."""

import pytest
import torch

from loopwise.checkpoint.hf_export import to_hf
from loopwise.checkpoint.native import open_checkpoint
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder, generate
from loopwise.sampling import SamplingParams

vllm = pytest.importorskip("vllm", reason="vLLM is not installed; it is no dependency of Loopwise")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
PROMPTS = ("Once upon a time", "The capital of France is")


@pytest.mark.parametrize("depth", [2, 8])
def test_greedy_tokens_are_those_of_the_reference_decoder(depth, tmp_path):
    checkpoint = open_checkpoint("tiny")
    words, model = Tokenizer.load(checkpoint.tokenizer_path), checkpoint.model()
    prompts = [words.encode(text) for text in PROMPTS]
    wanted = []
    for ids in prompts:
        policy = Policy.parse(f"depth={depth}")
        decoder = Decoder(model, policy, length=len(ids) + 16, prefill=policy)
        with torch.inference_mode():
            made = generate(decoder, ids, SamplingParams(max_tokens=16, ignore_eos=True))
        wanted.append([token.id for token in made.tokens])
    engine = vllm.LLM(
        model=str(to_hf(checkpoint, tmp_path / "export")),
        trust_remote_code=True,
        model_impl="transformers",
        dtype="float32",
        hf_overrides={"num_steps": depth},
        max_model_len=checkpoint.config.context,
        enforce_eager=True,
    )
    params = vllm.SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    found = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    assert [list(out.outputs[0].token_ids) for out in found] == wanted
