"""The comparison of signals on a small random model."""

import argparse

import numpy as np
import pytest

from loopwise.calibrate import compare
from loopwise.calibrate.families import CANDIDATES, LIVE, PREDICTED, by_depth, candidate_kl, families
from loopwise.calibrate.fit import fit_probe
from loopwise.calibrate.table import Arena, table
from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS
from loopwise.measure.frontier import Ground
from loopwise.measure.replay import exit_depths
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows
from loopwise.model.cost import Cost
from loopwise.recipes.tiny import tiny

DEPTH = 4


@pytest.fixture
def arena(make_model) -> Arena:
    model, rng = make_model(d_model=16, num_heads=2), np.random.default_rng(0)

    def windows(count: int) -> Windows:
        ids = [rng.integers(0, 61, 17).astype(np.int32) for _ in range(count)]
        return Windows(ids=ids, document=np.arange(count), hashes=[str(i) for i in range(count)], context=16)

    probe = fit_probe(model, windows(32), DEPTH, progress=lambda what, share: None)
    text = windows(9)
    found = trace(model, text, max_depth=DEPTH, probe=probe)
    found = found.__class__(columns={**found.columns, CANDIDATES: candidate_kl(model, text, DEPTH)}, index=found.index,
                            max_depth=DEPTH, digest=found.digest)  # fmt: skip
    ground = Ground.of(found, Cost.of(model.config), reference=DEPTH, tolerance=0.02, draws=20, seed=0)
    return Arena(model, text, found, probe, ground)


def test_table_has_every_family_in_replay_and_those_to_decode_live(arena):
    asked = argparse.Namespace(live_tokens=64, live_policies="kl,rel_change", wall_tokens=32, repeats=1)
    result = table(arena, asked)
    by_mode = {m: {r["name"] for r in result["rows"] if r["mode"] == m} for m in ("replay", "live")}
    assert (
        by_mode["replay"] == {*families(arena.found, DEPTH), PREDICTED, CANDIDATES} and set(SIGNALS) < by_mode["replay"]
    )
    assert by_mode["live"] == {"A0", "kl", "rel_change"} and set(LIVE) <= by_mode["replay"]
    for row in result["rows"]:
        if row["matched"]:
            assert 1 <= row["matched"]["mean_depth"] <= DEPTH
            assert row["name"] in (PREDICTED, CANDIDATES) or row["matched"]["cost_ratio"] > 0
    a1 = next(r for r in result["rows"] if r["name"] == "kl" and r["mode"] == "replay")
    assert a1["with_a1"]["equal"] == 1.0 and a1["of_a1"] in (1.0, None)
    timed = [r for r in result["rows"] if r["mode"] == "live" and r["matched"]]
    assert all(r["time"]["seconds"] > 0 for r in timed)


def test_candidate_kl_is_kl_when_all_tokens_are_candidates(arena):
    known, found = arena.found.columns["kl"], arena.found.columns[CANDIDATES]
    assert np.allclose(found[1:], known[1:], atol=1e-5)  # 61 tokens, 64 candidates asked for


def test_thresholds_by_depth_let_equal_shares_pass(arena):
    family = by_depth(arena.found, "rel_change", DEPTH, size=5)
    depths = [exit_depths(arena.found, p.bind(DEPTH)).mean() for _, p in family]
    assert depths == sorted(depths, reverse=True) and depths[-1] == 2
    assert isinstance(family[0][1], Policy) and len(family[0][1].later) == DEPTH - 3


def test_finished_tables_are_kept_and_a_changed_budget_makes_them_anew(monkeypatch, tmp_path, capsys):
    made = []

    def counted(arena: Arena, args: argparse.Namespace, note) -> dict:
        made.append(args.tolerance)
        note("counting")
        return {"rows": [], "best_fixed": args.tolerance}

    monkeypatch.setattr(compare, "table", counted)
    monkeypatch.setattr(compare, "_arena", lambda *_: None)  # nothing to fit or trace: the table is counted only
    parser = argparse.ArgumentParser()
    compare.configure(parser)
    asked = ["--tokens", "256", "--fit-tokens", "256", "--live-tokens", "0", "--cache", str(tmp_path)]

    def run(*more: str) -> dict:
        args = parser.parse_args([*asked, "--text", "p=puzzles", *more])
        return compare.bench_exit(argparse.Namespace(**vars(args), quiet=False), tiny().model)

    first, again = run(), run()
    assert made == [0.01] and first["tables"] == again["tables"]
    assert run("--tolerance", "0.02")["tables"][0]["best_fixed"] == 0.02 and made == [0.01, 0.02]
    assert "1 of 1: tiny on p" in capsys.readouterr().err
