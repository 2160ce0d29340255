"""`LLM`: offline generation and scoring equal the reference decoder; interrupts leave the engine usable."""

import os
import signal

import pytest
import torch

from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import InputError
from loopwise.engine.llm import LLM
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder, generate
from loopwise.sampling import SamplingParams


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", policy="rel_change<0.05,max=8", max_rows=4)


def test_texts_equal_the_reference(llm, tiny_tokenizer):
    params = SamplingParams(max_tokens=12, stop=(" the",), temperature=0.8, seed=5)
    prompts = ["The capital of", "a=3; b=a; ? b", "Population:"]
    found = llm.generate(prompts, params)
    for prompt, output in zip(prompts, found, strict=True):
        decoder = Decoder(
            llm.engine.model, Policy.parse("rel_change<0.05,max=8"), length=64, prefill=llm.engine.prefill
        )
        made = generate(
            decoder, tiny_tokenizer.encode(prompt), params, eos=tiny_tokenizer.eos_id, decode=tiny_tokenizer.decode
        )
        assert output.tokens == [t.id for t in made.tokens]
        assert output.depths == [t.depth for t in made.tokens]
        assert (output.text, output.finish) == (made.text, made.finish)


def test_order_choices_and_one_set_of_parameters_each(llm):
    each = [SamplingParams(max_tokens=3), SamplingParams(max_tokens=2, n=2, temperature=1.0, seed=1)]
    found = llm.generate(["One", [5, 6, 7]], each, ["depth=2", None])
    assert [(len(o.tokens), o.index) for o in found] == [(3, 0), (2, 0), (2, 1)]
    assert set(found[0].depths[1:]) == {2}
    assert llm.generate("One", each[0], "depth=2")[0].tokens == found[0].tokens
    assert llm.generate([]) == []


def test_scores_equal_a_forward_pass_at_fixed_depth(llm, tiny_tokenizer):
    """At uniform depth, decoding with a cache is the parallel forward pass."""
    llm8 = LLM(llm.engine.model, policy="depth=6", prefill="depth=6")
    tokens = tiny_tokenizer.encode("The capital of the country is a city on the river.")
    (score, single) = llm8.score([tokens, tokens[:1]])
    log_probs = llm.engine.model(torch.tensor([tokens]), 6)[0].log_softmax(-1)
    expected = log_probs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    assert score.logprobs == pytest.approx(expected, abs=2e-4)
    assert score.tokens == tokens and set(score.depths) == {6} and len(score.depths) == len(tokens) - 1
    assert single.logprobs == [] and single.tokens == tokens[:1]


@pytest.fixture
def ctrl_c_interrupts():
    """Python's own handler, even where a shell started this run in the background, with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_first_ctrl_c_cancels_after_the_launch_and_the_engine_goes_on(llm):
    launch, engine = llm.engine.step, llm.engine

    def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        return launch()

    engine.step = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["One", "Two"], SamplingParams(max_tokens=20))
    finally:
        engine.step = launch
    assert not engine.busy and engine.blocks.num_held == 0
    engine.planner.check_integrity()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(llm.generate("One", SamplingParams(max_tokens=4, ignore_eos=True))[0].tokens) == 4


def test_a_refused_prompt_leaves_nothing_behind(llm):
    with pytest.raises(InputError, match="context"):
        llm.generate(["One", "word " * 300])
    assert not llm.engine.busy


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: LLM("tiny", max_row=3), "max_rows"),
        (lambda llm: LLM("tiny", dtype="float31"), "float32"),
        (lambda llm: LLM("nothing"), "does not exist"),
        (lambda llm: LLM(llm.engine.model).generate("text"), "no tokenizer"),
        (lambda llm: llm.generate(["a", "b"], [SamplingParams()]), "1 entries for 2 prompts"),
        (lambda llm: llm.generate("a", policies="kl<x"), "threshold"),
        (lambda llm: llm.generate([[]]), "no tokens"),
    ],
)
def test_mistakes_are_named(llm, call, message):
    with pytest.raises(InputError, match=message):
        call(llm)


def test_bfloat16_runs():
    (output,) = LLM("tiny", dtype="bfloat16").generate("The", SamplingParams(max_tokens=3))
    assert len(output.tokens) == 3


def test_stats_count_what_was_done():
    llm = LLM(open_checkpoint("tiny"), policy="depth=4", prefill="depth=8", max_rows=2)
    llm.generate([[1, 2, 3], [4, 5]], SamplingParams(max_tokens=5, ignore_eos=True))
    stats = llm.stats()
    assert (stats["requests"], stats["finished"], stats["output_tokens"]) == (2, 2, 10)
    assert stats["core_passes"] == 8 * 4 and stats["prompt_passes"] == 5 * 8
    assert stats["exit_depths"] == {"4": 8, "8": 2}
    assert stats["rows_per_launch"]["core"] == 2 and 0 < stats["host_share"] < 1
    assert stats["kv_blocks_held"] == stats["waiting"] == stats["running"] == 0


def test_many_policies_hold_no_more_than_the_places_and_keep_to_their_own(llm):
    """A server's clients name any threshold they like: what decides exits must not pile up."""
    policies = [f"rel_change<{0.02 * (1 + n % 23)},max={2 + n % 7}" for n in range(60)]
    found = llm.generate(["The sea"] * 60, SamplingParams(max_tokens=4, ignore_eos=True), policies)
    runner = llm.engine.runner
    assert len(runner.kinds) == len(runner.kind_of) == llm.engine.places
    for policy in (0, 17, 59):
        alone = llm.generate(["The sea"], SamplingParams(max_tokens=4, ignore_eos=True), [policies[policy]])[0]
        assert (found[policy].tokens, found[policy].depths) == (alone.tokens, alone.depths)
