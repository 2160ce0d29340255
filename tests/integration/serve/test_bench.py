"""`loopwise bench serve`, briefly: what it reports of a server after misbehaving clients."""

import argparse

from loopwise.serve import bench


def test_a_short_run():
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    args = parser.parse_args("--seconds 2 --alone 1.5 --streams 6 --max-tokens 4 --seed 3".split())
    found = bench.bench_serve(args)
    rows = {row["name"]: row["value"] for row in found["rows"]}
    for name in ("leaked_blocks", "held_rows", "waiting_tokens", "lost", "nonsense_other"):
        assert rows[name] == 0, name
    assert rows["health"] == 200 and rows["mixed"] >= 2
    for tier in ("economy", "full"):
        assert rows[f"mixed_{tier}_finished"] > 0 and rows[f"mixed_{tier}_failed"] == 0
        assert 0 < rows[f"mixed_{tier}_ttft_p50"] <= rows[f"mixed_{tier}_e2e_p99"]
        assert rows[f"alone_{tier}_output"] > 0
    assert rows["alone_economy_mean_depth"] < rows["alone_full_mean_depth"] == 8
    ratios = found["ratios"]
    assert ratios["economy_over_full_served"] > 0 and ratios["flops_at_calibrated_depth"] > 1
    assert found["manifest"]["seed"] == 3 and found["manifest"]["config"]["streams"] == 6
