"""Conformance tools that others wrote: llm-comply and schemathesis; and lm-eval as a black-box user."""

import json
import subprocess
import sys

import pytest

from loopwise.serve.grammar import Grammars

CHAT_TESTS = (
    "basic-response system-prompt multi-turn tool-calling streaming-response streaming-usage error-handling"
).split()


@pytest.mark.slow
def test_llm_comply(serve, monkeypatch):
    pytest.importorskip("llm_comply", reason="the optional package llm-comply is absent")
    compile_tools = Grammars.tools

    def short(self, tools, *, required):
        """tiny is a base model and would fill its context with a city's name: texts in calls get a bound."""
        for tool in tools:
            for value in (tool.function.parameters or {}).get("properties", {}).values():
                value.setdefault("maxLength", 12)
        return compile_tools(self, tools, required=required)

    monkeypatch.setattr(Grammars, "tools", short)
    # Answers of a base model end somewhere: let it be at a line or a full stop, and give it room for one.
    with serve(
        chat_stop=("\n", "."), engine={"context": 256}, tiers={"quick": "depth=2"}, default_tier="quick"
    ) as server:
        passed: set[str] = set()
        for _ in range(3):  # answers are sampled: one may be empty, or not end
            names = [name for name in CHAT_TESTS if name not in passed]
            passed |= comply(server.url, names)
    assert passed == set(CHAT_TESTS)


def comply(url, names):
    """The tests that pass."""
    if not names:
        return set()
    wanted = ",".join("chat-" + name for name in names)
    run = subprocess.run(
        [sys.executable, "-m", "llm_comply.cli", "--format", "openai-chat", "-u", url + "/v1", "-k", "x",
         "-m", "tiny", "--json", "-f", wanted],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    found = json.loads(run.stdout[run.stdout.index("{") :])
    return {r["id"].removeprefix("chat-") for r in found["results"] if r["status"] == "passed"}


@pytest.mark.slow
def test_schemathesis(serve):
    schemathesis = pytest.importorskip("schemathesis", reason="the optional package schemathesis is absent")
    from hypothesis import HealthCheck, Phase, given, settings

    checks = schemathesis.checks
    checks.load_all_checks()
    chosen = [
        *checks.CHECKS.get_by_names(
            [
                "not_a_server_error",
                "status_code_conformance",
                "content_type_conformance",
                "response_schema_conformance",
                "response_headers_conformance",
            ]
        ),
    ]
    with serve() as server:
        schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
        for result in schema.get_all_operations():
            operation = result.ok()

            @given(case=operation.as_strategy())
            @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
            def ask(case):
                if isinstance(case.body, dict) and case.body.get("stream"):
                    return  # an event stream has no schema
                case.call_and_validate(base_url=server.url, checks=chosen)

            ask()
        server.idle()


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["full", "economy"])
def test_lm_eval_over_http_scores_as_in_process(serve, tier):
    """The requests that lm-eval's `local-completions` sends, against the model class that scores in process."""
    pytest.importorskip("lm_eval", reason="the extra eval is absent")
    from lm_eval.api.instance import Instance

    from loopwise.checkpoint.native import open_checkpoint
    from loopwise.eval.adapter import LoopwiseLM

    checkpoint = open_checkpoint("tiny")
    pairs = [
        ("The capital of", " the island"),
        ("The sea is", " blue and cold"),
        ("Once upon a", " time there was a king"),
    ]
    with serve() as server:
        lm = LoopwiseLM(checkpoint, server.service.planner.menu.tiers[tier].policy)
        asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
        expected = lm.loglikelihood(asked, disable_tqdm=True)
        prompts = [lm._encode_pair(*pair) for pair in pairs]
        answer = server.post("/v1/completions", model=f"tiny:{tier}", prompt=[c + t for c, t in prompts], echo=True,
                             logprobs=1, max_tokens=1, temperature=0).json()  # fmt: skip
    for (context, tail), choice, (value, greedy) in zip(prompts, answer["choices"], expected, strict=True):
        found = choice["logprobs"]
        scores, tops = (
            found[name][len(context) : len(context) + len(tail)] for name in ("token_logprobs", "top_logprobs")
        )
        # Under a policy the engine computes the very first token as a prompt, the model class decodes it too.
        assert sum(scores) == pytest.approx(value, abs=1e-3 if tier == "full" else 0.05)
        assert all(max(top.values()) == score for top, score in zip(tops, scores, strict=True)) == greedy
