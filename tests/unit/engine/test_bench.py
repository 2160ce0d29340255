"""The benchmarks run at small size, compare what they say they compare, and write a record with its manifest."""

import json

import pytest
import torch

from loopwise.cli.main import main
from loopwise.engine.bench import schedule
from loopwise.engine.bench.planner import bench_planner
from loopwise.records import read_json

pytestmark = pytest.mark.usefixtures("no_shape_checks")  # they would take most of the time


def test_the_replayed_schedule_has_the_mean_of_the_study():
    drawn = schedule.depths(1000, 3)
    assert sum(drawn) / len(drawn) == pytest.approx(schedule.STUDY_MEAN)
    assert set(drawn) == set(schedule.STUDY) and drawn != schedule.depths(1000, 4)
    assert schedule.replay(5, 1).recorded == schedule.depths(5, 1)


def run(capsys, *words: str) -> dict:
    assert main(["bench", *words, "--quick", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_decode_replay_gives_every_arm_its_depth(capsys, tmp_path):
    file = tmp_path / "decode.json"
    found = run(capsys, "decode", "--part", "replay", "--rows", "4", "--repeats", "1", "--out", str(file))
    arms = found["arms"]["replay"]
    assert list(arms) == ["bare", "masked", "full", "no_refill", "refill"]
    assert arms["bare"]["mean_depth"] == 8
    assert arms["refill"]["mean_depth"] < arms["full"]["mean_depth"] <= 8
    assert {"replay 4: refill/full", "replay 4: share of the bound", "replay 4: overhead at full depth"} <= set(
        found["ratios"]
    )
    assert all(row["value"] > 0 for row in found["rows"])
    record = read_json(file)
    assert record["rows"] == found["rows"]
    assert record["manifest"]["command"].startswith("loopwise bench decode --recipe")
    assert {"threads", "load_1min"} <= record["manifest"]["hardware"].keys()


def test_replay_of_live_depths_with_measured_threads(capsys):
    before = torch.get_num_threads()
    try:
        words = ("--schedule", "live", "--threads", "0", "--rows", "4", "--repeats", "1")
        found = run(capsys, "decode", "--part", "replay", *words)
    finally:
        torch.set_num_threads(before)
    measured = [row["value"] for row in found["rows"] if row["unit"] == "ms"]
    assert found["manifest"]["config"]["threads"] == 1 + measured.index(min(measured))
    assert found["arms"]["replay"]["refill"]["mean_depth"] < found["arms"]["replay"]["full"]["mean_depth"]
    assert "replay 4, live depths: refill/full" in found["ratios"]


def test_recorded_depths_go_round_and_round():
    policy = schedule.recorded([2, 3, 5], 7, seed=1)
    assert policy.recorded == (3, 5, 2, 3, 5, 2, 3) and policy.max_depth == 5


def test_decode_real_compares_live_exits_with_their_reference(capsys):
    found = run(capsys, "decode", "--part", "real", "--real-rows", "4", "--repeats", "1")
    arms = found["arms"]["real"]
    assert list(arms) == ["bare", "masked", "full", "best_fixed", "no_refill", "refill"]
    assert arms["refill"]["stats"]["exit_depths"].keys() != {"8"}


def test_prefill_leaves_early_and_finds_its_prefix(capsys):
    found = run(capsys, "prefill", "--part", "replay", "--part", "ttft", "--repeats", "1")
    full, exits = found["arms"]["replay"]["full"][0], found["arms"]["replay"]["exits"][0]
    assert full["passes"] == 8 * full["tokens"] and exits["passes"] < full["passes"]
    cold, warm = found["arms"]["ttft"]["cold"][0], found["arms"]["ttft"]["warm"][0]
    assert cold["passes"] > warm["passes"]


def test_planning_time_does_not_grow_with_the_queue():
    assert {row["unit"] for row in bench_planner(quick=True)["rows"]} == {"us"}


@pytest.mark.slow
def test_static_batches_of_transformers_give_what_the_engine_gives(tmp_path):
    pytest.importorskip("transformers", reason="needs the hf extra")
    from loopwise.checkpoint.hf_baseline import load_exported, static_batches
    from loopwise.checkpoint.native import open_checkpoint
    from loopwise.engine.llm import LLM
    from loopwise.sampling import SamplingParams

    prompts, lengths = [[5, 6, 7], [9], [100, 200]], [4, 7, 2]
    theirs = static_batches(load_exported(open_checkpoint("tiny"), tmp_path / "hf", 8), prompts, lengths, rows=2)
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    assert theirs == [o.tokens for o in LLM("tiny", policy="depth=8", prefill="depth=8").generate(prompts, params)]
