"""The same seeded request gives the same tokens alone and under load, warm and cold, on every tier."""

import concurrent.futures

import pytest

PROMPT = list(range(400, 470))


TIERS = ["economy", "balanced", "quality", "kl", "full"]


def test_no_tier_is_left_out(server):
    assert sorted(server.service.planner.menu.tiers) == sorted(TIERS)


@pytest.mark.parametrize("tier", [TIERS[0], *(pytest.param(tier, marks=pytest.mark.slow) for tier in TIERS[1:])])
def test_alone_under_load_cold_and_warm(server, tier):
    asked = dict(
        model=f"tiny:{tier}", prompt=PROMPT, max_tokens=10, seed=11, temperature=0.9, return_token_ids=True,
        return_depths=True, logprobs=2,
    )  # fmt: skip

    def ask(**more):
        answer = server.post("/v1/completions", **{**asked, **more})
        assert answer.status_code == 200, answer.text
        choice, usage = answer.json()["choices"][0], answer.json()["usage"]
        return (choice["token_ids"], choice["depths"], choice["logprobs"]["token_logprobs"]), usage

    cold, usage = ask(cache_salt=f"cold-{tier}")
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    for other in TIERS:  # whichever tier left the prompt in the cache
        ask(cache_salt=f"by-{other}-for-{tier}", model=f"tiny:{other}")
        warm, usage = ask(cache_salt=f"by-{other}-for-{tier}")
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0 and warm[:2] == cold[:2]
        assert warm[2] == pytest.approx(cold[2], abs=1e-4)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        noise = [
            pool.submit(server.post, "/v1/completions", prompt=PROMPT[i:], max_tokens=12, model=f"tiny:{other}", seed=i)
            for i, other in enumerate(["economy", "kl", "full", "economy", "full", "kl", "full", "economy"])
        ]
        crowded = [pool.submit(ask, cache_salt=f"load-{tier}-{i}") for i in range(3)]
        for future in crowded:
            found, _ = future.result()
            assert found[:2] == cold[:2] and found[2] == pytest.approx(cold[2], abs=1e-4)
        assert all(future.result().status_code == 200 for future in noise)
