"""The lm-eval adapter: scores do not depend on the batch, live equals uniform at fixed depth, compute is counted."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from loopwise.checkpoint.native import open_checkpoint, save
from loopwise.config import InputError, ModelConfig
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder, generate
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

pytest.importorskip("lm_eval", reason="needs the 'eval' extra")
adapter = pytest.importorskip("loopwise.eval.adapter", reason="needs the 'eval' extra")
run = pytest.importorskip("loopwise.eval.run", reason="needs the 'eval' extra")

PAIRS = [("one two", " three"), ("four", " five six"), ("", "seven eight"), ("nine ten eleven ", "twelve")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    words = Tokenizer.train(["one two three four five six seven eight nine ten eleven twelve " * 9], vocab_size=280)
    words.save(folder / "tokenizer.json")
    config = ModelConfig(
        vocab_size=words.size,
        d_model=32,
        num_heads=2,
        d_ff=48,
        prelude_layers=1,
        core_layers=1,
        coda_layers=1,
        context=64,
        max_depth=6,
        mean_depth=3.0,
    )
    model = RecurrentLM(config).initialise(0)
    return open_checkpoint(str(save(folder / "model", model, tokenizer=folder / "tokenizer.json")))


def scores(checkpoint, policy, batch_size=16):
    model = adapter.LoopwiseLM(checkpoint, Policy.parse(policy), batch_size=batch_size)
    found = model.loglikelihood([SimpleNamespace(args=pair) for pair in PAIRS], disable_tqdm=True)
    return model, np.array([logprob for logprob, _ in found]), [greedy for _, greedy in found]


def test_scores_are_those_of_the_plain_model_whatever_the_batch(checkpoint):
    model, together, _ = scores(checkpoint, "depth=3")
    _, alone, _ = scores(checkpoint, "depth=3", batch_size=1)
    assert np.allclose(together, alone, atol=1e-5)
    prompt, tail = (model.tok_encode(text) for text in PAIRS[0])
    with torch.no_grad():
        logits = model.model(torch.tensor([prompt + tail]), 3)[0, len(prompt) - 1 : -1].log_softmax(-1)
    assert together[0] == pytest.approx(float(logits.gather(1, torch.tensor(tail)[:, None]).sum()), abs=1e-5)


def test_live_decoding_at_a_threshold_never_met_is_uniform_depth(checkpoint):
    uniform, wanted, greedy = scores(checkpoint, "depth=4")
    live, found, also = scores(checkpoint, "rel_change<0,max=4")
    assert np.allclose(found, wanted, atol=1e-4)
    assert greedy == also
    assert live.spent.tokens == uniform.spent.tokens
    assert live.spent.passes == uniform.spent.passes == 4 * live.spent.tokens


def test_early_exit_spends_less_and_says_so(checkpoint):
    model, _, _ = scores(checkpoint, "rel_change<10,max=6")
    assert model.spent.passes < 6 * model.spent.tokens
    model.reset()
    assert model.spent.tokens == 0


def test_rolling_scores_every_token_once(checkpoint):
    model = adapter.LoopwiseLM(checkpoint, Policy.parse("depth=2"))
    text = "one two three four five six seven eight nine ten " * 8
    model.loglikelihood_rolling([SimpleNamespace(args=(text,))])
    assert model.spent.readouts == len(model.tok_encode(text))


def test_generation_stops_where_it_is_told(checkpoint):
    model = adapter.LoopwiseLM(checkpoint, Policy.parse("depth=2"))
    request = SimpleNamespace(args=("one two", {"until": [" "], "max_gen_toks": 8}))
    (text,) = model.generate_until([request])
    assert " " not in text


def test_local_tasks_run_and_report_depth_and_compute(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    items = [{"query": "one two", "choices": ["three", "four"], "gold": i % 2} for i in range(3)]
    (tmp_path / "arc_easy.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    model = adapter.LoopwiseLM(checkpoint, Policy.parse("depth=2"))
    found = run.evaluate(model, ["arc_easy"], data=tmp_path, limit=2)["arc_easy"]
    assert found["samples"] == 2
    assert found["mean_depth"] == 2
    assert 0 <= found["acc"] <= 1
    with pytest.raises(InputError, match="--data"):
        run.evaluate(model, ["lambada"], data=tmp_path)


def test_hellaswag_items_lose_their_marks():
    doc = {
        "activity_label": "Pole vault",
        "ctx_a": "You run [title] Jump",
        "ctx_b": "a few  women",
        "label": "3",
        "endings": ["go [x] on", "b", "c", "d"],
    }
    made = run.PREPARE["hellaswag"](doc)
    assert made["query"] == "Pole vault: You run. Jump A few women"
    assert made["choices"][0] == "go on"
    assert made["gold"] == 3


TEXTS = [
    ("The island lies in the", " south of the sea."),
    ("", "Exports: fish, tin and timber"),
    ("a", " b"),
    ("The climate is mild all year; rain falls from May to October, and the", " dry season is short and cool"),
    ("Population", ":"),
]


def decoded(checkpoint, policy, row, tail):
    """Log-likelihood of the last `tail` tokens of a row and its passes, from the reference decoder alone."""
    decoder = Decoder(checkpoint.model(), policy, length=len(row))
    total, passes, greedy = 0.0, 0, True
    for position, (token, target) in enumerate(itertools.pairwise(row)):
        logits, depth, _ = decoder.step(token)
        passes += depth
        if position >= len(row) - 1 - tail:
            total += float(logits.log_softmax(-1)[target])
            greedy &= int(logits.argmax()) == target
    return total, passes, greedy


CASES = [("economy", 1), ("economy", 3), ("full", 3), ("kl<0.2,max=6", 3), ("rel_change<0.4,every=2,max=8", 16)]


@pytest.mark.parametrize(("way", "batch_size"), CASES)
def test_scores_under_a_tier_are_the_reference_decoders_whatever_runs_beside_them(way, batch_size):
    """Texts of many lengths in one batch, each token leaving by itself, against one text and one token at a time."""
    tiny = open_checkpoint("tiny")
    policy = Policy.parse(way) if "=" in way else tiny.tier(way).policy
    model = adapter.LoopwiseLM(tiny, policy, batch_size=batch_size)
    found = model.loglikelihood([SimpleNamespace(args=pair) for pair in TEXTS], disable_tqdm=True)
    passes = tokens = 0
    for (context, tail), (logprob, greedy) in zip(TEXTS, found, strict=True):
        head, rest = (model.tok_encode(text) for text in (context, context + tail))
        row = rest if head else [model.prefix_token_id, *rest]
        scored = len(rest) - len(head)
        wanted, spent, also = decoded(tiny, model.policy, row, scored)
        assert (logprob, greedy) == (pytest.approx(wanted, abs=1e-4), also)
        passes, tokens = passes + spent, tokens + len(row) - 1
    assert (model.spent.passes, model.spent.tokens) == (passes, tokens)


@pytest.mark.parametrize("way", ["economy", "depth=3"])
def test_continuations_from_the_engine_are_the_reference_decoders(way):
    tiny = open_checkpoint("tiny")
    policy = Policy.parse(way) if "=" in way else tiny.tier(way).policy
    model = adapter.LoopwiseLM(tiny, policy, batch_size=2)
    prompts = [context for context, _ in TEXTS if context]
    made = model.generate_until([SimpleNamespace(args=(p, {"until": ["."], "max_gen_toks": 9})) for p in prompts])
    for prompt, text in zip(prompts, made, strict=True):
        ids = model.tok_encode(prompt)
        decoder = Decoder(model.model, model.policy, length=len(ids) + 9)
        params = SamplingParams(max_tokens=9, stop=(".",), seed=0)
        assert generate(decoder, ids, params, decode=model.words.decode).text == text
