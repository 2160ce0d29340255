"""The lm-eval adapter: scores do not depend on the batch, live equals uniform at fixed depth, compute is counted."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from loopwise.checkpoint.native import open_checkpoint, save
from loopwise.config import InputError, ModelConfig
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.model.recurrent import RecurrentLM

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
