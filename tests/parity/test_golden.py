"""Imported checkpoints against the official outputs of their own projects, and back out again bit by bit."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loopwise.checkpoint.foreign import from_foreign, open_foreign, to_foreign
from loopwise.checkpoint.golden.cases import by_dtype, golden_folder, verify
from loopwise.checkpoint.native import open_checkpoint
from loopwise.checkpoint.retrofit import parse, retrofit
from loopwise.cli.main import main
from loopwise.records import read_json

SHARED = Path(os.environ.get("LOOPWISE_SHARED") or Path(__file__).parents[2] / "../shared")
GOLDEN = SHARED / "golden"
FOLDERS = sorted(p.name for p in GOLDEN.glob("*") if (p / "expected.safetensors").is_file())
pytestmark = pytest.mark.skipif(not FOLDERS, reason="golden files of other projects are not here (set LOOPWISE_SHARED)")
TOLERANCE = 2e-4


def imported(name: str, out: Path):
    opened = open_foreign(str(GOLDEN / name))
    return opened.plan, open_checkpoint(str(from_foreign(opened.plan, out, companions=opened.companions)))


def quick(name: str) -> bool:
    """Everything but Huginn's token-by-token runs and its rarer caches, which take most of a minute together."""
    slow = (".tokenwise.", "gen.adaptive", "gen.minimal.compress", "schedule.latest")
    return not any(part in name for part in slow)


@pytest.mark.parametrize("name", FOLDERS)
def test_states_logits_gates_decodes_and_greedy_runs_are_the_official_ones(name, tmp_path):
    plan, checkpoint = imported(name, tmp_path / "native")
    parity = verify(checkpoint.model(), plan.name, GOLDEN / name, only=quick)
    assert {case: error for case, error in parity.items() if error > TOLERANCE} == {}
    assert all(error == 0 for case, error in parity.items() if case.endswith((".tokens", ".steps")))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [n for n in FOLDERS if n.startswith("huginn")])
def test_official_exit_criteria_stop_at_the_official_steps(name, tmp_path):
    plan, checkpoint = imported(name, tmp_path / "native")
    parity = verify(checkpoint.model(), plan.name, GOLDEN / name, only=lambda case: not quick(case))
    assert {case: error for case, error in parity.items() if error > TOLERANCE} == {}


@pytest.mark.parametrize("criterion", ["kl", "latent-diff"])
@pytest.mark.parametrize("name", [n for n in FOLDERS if n.startswith("huginn")][-1:])
def test_adaptive_generation_takes_the_official_steps(name, criterion, tmp_path):
    """A part of the slow test that is quick enough for every day."""
    plan, checkpoint = imported(name, tmp_path / "native")
    wanted = f"gen.adaptive.{criterion}.full.default."
    parity = verify(checkpoint.model(), plan.name, GOLDEN / name, only=lambda case: case.startswith(wanted))
    assert max(parity.values()) <= TOLERANCE


@pytest.mark.parametrize("name", FOLDERS + [f"{n}/source" for n in FOLDERS if (GOLDEN / n / "source").is_dir()])
def test_export_to_the_source_format_gives_back_every_bit(name, tmp_path):
    _, checkpoint = imported(name, tmp_path / "native")
    back = to_foreign(checkpoint, tmp_path / "back")
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (GOLDEN / name, back))
    assert theirs.keys() == ours.keys()
    for key, tensor in theirs.items():
        assert (ours[key].dtype, ours[key].shape) == (tensor.dtype, tensor.shape), key
        assert torch.equal(ours[key].view(torch.uint8), tensor.view(torch.uint8)), key
    assert read_json(back / "config.json") == read_json(GOLDEN / name / "config.json")


@pytest.mark.parametrize("name", [n for n in FOLDERS if n.startswith("retrofit")])
def test_retrofit_at_depth_one_is_the_chosen_stack(name, tmp_path):
    plan = open_foreign(str(GOLDEN / name / "source")).plan
    config = read_json(GOLDEN / name / "config.json")
    shape = "-".join(str(config[f"n_layers_in_{stage}"]) for stage in ("prelude", "recurrent_block", "coda"))
    looped = retrofit(plan, parse(shape, plan.config.core_layers))
    checkpoint = open_checkpoint(str(from_foreign(looped, tmp_path / "native")))
    parity = verify(checkpoint.model(), plan.name, GOLDEN / name)
    assert {"source_pruned.logits", "identity_adapter.logits.r2"} <= parity.keys()
    assert max(parity.values()) <= TOLERANCE
    again = open_foreign(str(to_foreign(checkpoint, tmp_path / "official"))).plan
    assert (again.name, again.unmapped, again.missing) == (looped.config.family, [], [])


def test_parity_by_dtype_grows_with_coarser_numbers(tmp_path):
    plan, checkpoint = imported(FOLDERS[-1], tmp_path / "native")
    found = by_dtype(checkpoint, plan.name, GOLDEN / FOLDERS[-1])
    assert found["float32"] <= TOLERANCE
    assert found["float32"] < found["float16"] < found["bfloat16"] < 1


def test_command_verifies_against_a_folder_or_its_parent(tmp_path, capsys):
    for given in (GOLDEN, GOLDEN / "ouro-b"):
        argv = ["import", str(GOLDEN / "ouro-b"), "--out", str(tmp_path / "out"), "--verify", str(given)]
        assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "45 cases" in shown
    assert "bfloat16" in shown
    assert golden_folder(GOLDEN, "ouro", GOLDEN / "ouro-b") == GOLDEN / "ouro-b"
