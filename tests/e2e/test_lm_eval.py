"""lm-eval as a black-box user: `lm_eval --model local-completions` against `loopwise serve`, and `loopwise eval` in
process, on the same task and items."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval", reason="needs the 'eval' extra")
pytest.importorskip("tenacity", reason="the optional package lm-eval[api] is absent")
yaml = pytest.importorskip("yaml", reason="needs the 'eval' extra")
run = pytest.importorskip("loopwise.eval.run", reason="needs the 'eval' extra")

from loopwise.data.puzzles import HELD_OUT_SEED, puzzles  # noqa: E402

ITEMS = 50
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def loopwise(*arguments):
    return [sys.executable, "-m", "loopwise", *map(str, arguments)]


def call(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def write_items(folder):
    """Items of the local task `lambada`: half ask for an answer of a puzzle, which the model knows, half for a link of
    one, which is random."""
    with (folder / "lambada_openai.jsonl").open("w") as file:
        for number, puzzle in enumerate(puzzles(HELD_OUT_SEED, ITEMS)):
            start = puzzle.spans[number % len(puzzle.spans)].start
            if number % 2:
                start = len("chain:\n") + len(" a b,") * (5 + number % 10) + len(" a")
            item = {"context": puzzle.text[:start], "continuation": puzzle.text[start + 1 : start + 2]}
            file.write(json.dumps(item) + "\n")


def over_http(folder, task, url, environment):
    """lm-eval's own report: scores, and what every item got."""
    (folder / "task.yaml").write_text(yaml.safe_dump(run.local_task(task, folder)))
    call(loopwise("export", "tiny", "--format", "hf", "--out", folder / "hf"), environment)
    model = f"base_url={url}/v1/completions,model=tiny:full,tokenizer={folder / 'hf'},max_length=129,num_concurrent=4"
    call(
        [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model,
         "--tasks", str(folder / "task.yaml"), "--log_samples", "--output_path", str(folder / "http")],
        environment,
    )  # fmt: skip
    results = next((folder / "http").rglob("results_*.json"))
    samples = next((folder / "http").rglob("samples_*.jsonl"))
    rows = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    return next(iter(json.loads(results.read_text())["results"].values())), rows


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scores_over_http_are_those_in_process(url, tmp_path):
    write_items(tmp_path)
    environment = {**os.environ, **OFFLINE}
    scores, rows = over_http(tmp_path, "lambada", url, environment)
    call(loopwise("eval", "tiny", "--tasks", "lambada", "--data", tmp_path, "--out", tmp_path / "own"), environment)
    record = json.loads((tmp_path / "own" / "eval.json").read_text())
    own, items = record["results"]["lambada"], record["items"]["lambada"]
    assert len(rows) == len(items) == ITEMS
    worst = 0.0
    for row, item in zip(rows, items, strict=True):
        (here, greedy), (there, also) = item["answers"][0], row["filtered_resps"][0]
        worst = max(worst, abs(float(there) - float(here)))
        assert worst < 1e-3 and str(also) == str(greedy)
    assert 0.4 < own["acc"] == scores["acc,none"] < 0.8
    assert scores["perplexity,none"] == pytest.approx(own["perplexity"], rel=1e-3)
    print(f"acc {own['acc']}, perplexity {own['perplexity']:.3f}; log-likelihoods differ by at most {worst:.1e}")
