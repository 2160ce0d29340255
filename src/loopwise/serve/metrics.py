"""Prometheus metrics: vLLM's names and shapes under the prefix `loopwise:`, and what only adaptive depth has.

With `compat` the first kind is exposed a second time under `vllm:`, for dashboards and autoscalers that know those.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loopwise.engine.async_engine import AsyncEngine
from loopwise.engine.request import Event
from loopwise.engine.stats import Stats
from loopwise.serve.tiers import Chosen

CLOCK = time.perf_counter
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
_COUNT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_LAUNCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ENDS = ("stop", "length", "abort", "error")
REFUSALS = ("queue_full", "rate_limit")
PREFIX = "loopwise:"


@dataclass(kw_only=True)
class Launches(Stats):
    """The engine's counters, with the sizes of launches: tokens of prompts or of a turn, and rows through the coda."""

    tokens: Histogram
    coda: Histogram

    def count(self, stage: str, rows: int, seconds: float) -> None:
        """One launch."""
        super().count(stage, rows, seconds)
        if stage != "core":
            self.tokens.observe(rows)
        if stage == "turn":
            self.coda.observe(rows)


class Metrics:
    """Everything that is counted. `max_depth` sets the buckets of the exit-depth histogram."""

    def __init__(self, engine: AsyncEngine, name: str, *, max_depth: int, reference: int, compat: bool = False) -> None:
        self.compat, self.reference, self.max_depth = compat, reference, max_depth
        self.shared, self.own = CollectorRegistry(), CollectorRegistry()
        self._label = {"model_name": name}

        def histogram(title: str, about: str, buckets: tuple[float, ...], **more: str) -> Histogram:
            return Histogram(PREFIX + title, about, ["model_name", *more], registry=self.shared, buckets=buckets)

        self.first = histogram("time_to_first_token_seconds", "Arrival to first token", _FIRST).labels(name)
        self.gap = histogram("inter_token_latency_seconds", "Between two tokens of a choice", _GAP).labels(name)
        self.each = histogram("request_time_per_output_token_seconds", "Mean after the first token", _GAP).labels(name)
        self.whole = histogram("e2e_request_latency_seconds", "Arrival to last token", _WHOLE).labels(name)
        self.queue = histogram("request_queue_time_seconds", "Arrival to a place in the engine", _WHOLE).labels(name)
        self.prefill = histogram("request_prefill_time_seconds", "Place to first token", _WHOLE).labels(name)
        self.decode = histogram("request_decode_time_seconds", "First token to last", _WHOLE).labels(name)
        self.inference = histogram("request_inference_time_seconds", "Place to last token", _WHOLE).labels(name)
        self.prompt = histogram("request_prompt_tokens", "Prompt tokens of a request", _COUNT).labels(name)
        self.output = histogram("request_generation_tokens", "Tokens generated for a choice", _COUNT).labels(name)
        self.success = Counter(
            PREFIX + "request_success", "Choices by how they ended", ["model_name", "finished_reason"],
            registry=self.shared,
        )  # fmt: skip
        self.rejections = Counter(
            PREFIX + "admission_rejections", "Requests not admitted", ["model_name", "reason"], registry=self.shared
        )
        self.http = Counter(
            PREFIX + "http_requests",
            "HTTP requests by path and status",
            ["method", "path", "status"],
            registry=self.own,
        )
        for reason in ENDS:
            self.success.labels(name, reason)
        for reason in REFUSALS:
            self.rejections.labels(name, reason)
        depths = tuple(float(depth) for depth in range(1, max_depth + 1))
        tiers = ["model_name", "tier"]
        self.depth = Histogram(
            PREFIX + "exit_depth", "Core passes of a generated token", tiers, registry=self.own, buckets=depths
        )
        self.saved = Counter(
            PREFIX + "saved_core_steps", "Core passes saved against the reference depth", tiers, registry=self.own
        )
        self.tokens = Counter(PREFIX + "tier_tokens", "Tokens generated", tiers, registry=self.own)
        self.exits = Counter(
            PREFIX + "exits", "Tokens by why they left the core", [*tiers, "reason"], registry=self.own
        )
        launched = histogram("iteration_tokens_total", "Prompt or generated tokens of a launch", _LAUNCH).labels(name)
        coda = Histogram(
            PREFIX + "coda_batch_size", "Rows of a coda launch", ["model_name"], registry=self.own, buckets=_LAUNCH
        )
        engine.engine.totals = Launches(tokens=launched, coda=coda.labels(name))
        self.shared.register(_Shared(engine, self._label))
        self.own.register(_Own(engine, self._label))

    def rejected(self, reason: str) -> None:
        """A request was turned away."""
        self.rejections.labels(*self._label.values(), reason).inc()

    def watch(self, chosen: Chosen, begun: float, choices: int) -> "Watch":
        """Follow one request that arrived at `begun` (of `CLOCK`)."""
        return Watch(self, chosen, begun, choices)

    def text(self) -> bytes:
        """The exposition."""
        shared = generate_latest(self.shared)
        again = shared.replace(PREFIX.encode(), b"vllm:") if self.compat else b""
        return shared + generate_latest(self.own) + again


class Watch:
    """Times and depths of one request; `close` in any case, so that nothing is left uncounted."""

    def __init__(self, metrics: Metrics, chosen: Chosen, begun: float, choices: int) -> None:
        self._m, self._begun, self._open = metrics, begun, choices
        self._most = chosen.policy.max_depth or metrics.max_depth
        self._names = metrics._label["model_name"], chosen.tier
        self._depth = metrics.depth.labels(*self._names)
        self._saved, self._tokens = metrics.saved.labels(*self._names), metrics.tokens.labels(*self._names)
        self._first: float | None = None
        self._last: dict[int, tuple[float, int, float]] = {}  # choice -> time of the last token, tokens, first time

    def take(self, base: int, events: list[Event]) -> None:
        """Events that just arrived."""
        now = CLOCK()
        if self._first is None:
            self._first = now
            self._m.first.observe(now - self._begun)
        counts: dict[int, int] = {}
        for event in events:
            index = base + event.index
            first = index not in self._last and index not in counts
            counts[index] = counts.get(index, 0) + 1
            self._depth.observe(event.depth)
            self._m.exits.labels(*self._names, self._reason(event, first=first)).inc()
        self._tokens.inc(len(events))
        self._saved.inc(sum(max(0, self._m.reference - event.depth) for event in events))
        for index, count in counts.items():
            at, before, first = self._last.get(index, (now, 0, now))
            fresh = count - (before == 0)
            for _ in range(fresh):
                self._m.gap.observe((now - at) / fresh)
            self._last[index] = (now, before + count, first)
        for event in events:
            if event.finish:
                self._finish(base + event.index, event, now)

    def _reason(self, event: Event, *, first: bool) -> str:
        """A choice's first token comes with its prompt, whose depth is not the tier's."""
        if first:
            return "prompt"
        return "max_depth" if event.depth >= self._most else "converged"

    def _ended(self, reason: str) -> None:
        self._open -= 1
        self._m.success.labels(self._names[0], reason).inc()

    def _finish(self, index: int, event: Event, now: float) -> None:
        _, count, first = self._last.pop(index)
        self._ended(event.finish or "")
        self._m.whole.observe(now - self._begun)
        if event.usage:
            admitted, began = event.usage.admitted_s, event.usage.first_s
            self._m.queue.observe(max(0.0, admitted - self._begun))
            self._m.prefill.observe(began - admitted)
            self._m.decode.observe(now - began)
            self._m.inference.observe(now - admitted)
        self._m.output.observe(count)
        if count > 1:
            self._m.each.observe((now - first) / (count - 1))
        if event.usage and index == 0:
            self._m.prompt.observe(event.usage.prompt_tokens)

    def close(self) -> None:
        """Choices that have not ended were given up."""
        while self._open > 0:
            self._ended("abort")


def _counter(name: str, about: str, value: float, labels: dict[str, str]) -> Metric:
    made = CounterMetricFamily(PREFIX + name, about, labels=list(labels))
    made.add_metric(list(labels.values()), value)
    return made


def _gauge(name: str, about: str, value: float, labels: dict[str, str]) -> Metric:
    made = GaugeMetricFamily(PREFIX + name, about, labels=list(labels))
    made.add_metric(list(labels.values()), value)
    return made


class _FromEngine(Collector):
    """Read from the engine at the scrape."""

    def __init__(self, engine: AsyncEngine, labels: dict[str, str]) -> None:
        self._engine, self._labels = engine, labels

    def describe(self) -> list[Metric]:
        return []


class _Shared(_FromEngine):
    """What vLLM's servers tell too."""

    def collect(self) -> Iterator[Metric]:
        stats, label = self._engine.stats(), self._labels
        config = self._engine.engine.config
        held = stats["kv_blocks_held"] / max(1, stats["kv_blocks"])
        yield _gauge("num_requests_running", "Choices being computed", self._engine.running, label)
        yield _gauge("num_requests_waiting", "Choices waiting for a place", self._engine.waiting, label)
        yield _gauge("kv_cache_usage_perc", "Share of KV blocks in use, 1 is all", held, label)
        yield _counter("num_preemptions", "Preemptions: this engine has none", 0, label)
        yield _counter("prompt_tokens", "Prompt tokens, cached ones included", stats["prompt_tokens"], label)
        yield _counter("generation_tokens", "Generated tokens", stats["output_tokens"], label)
        yield _counter("prefix_cache_queries", "Prompt tokens looked up", stats["prompt_tokens"], label)
        yield _counter("prefix_cache_hits", "Prompt tokens found", stats["cached_tokens"], label)
        cache = {
            "block_size": str(stats["block_size"]),
            "num_gpu_blocks": str(stats["kv_blocks"]),
            "cache_dtype": str(self._engine.engine.model.embedding.weight.dtype).removeprefix("torch."),
            "enable_prefix_caching": str(config.prefix_cache),
        }
        yield _gauge("cache_config_info", "Configuration of the KV cache", 1, {**label, **cache})


class _Own(_FromEngine):
    """What only an engine with adaptive depth has."""

    def collect(self) -> Iterator[Metric]:
        stats, label = self._engine.stats(), self._labels
        rows = self._engine.engine.config.max_rows
        host = max(0.0, stats["wall_s"] - sum(stats["seconds"].values()))
        occupancy = stats["rows_per_launch"]["core"] / rows
        yield _counter("core_steps", "Core passes of generated tokens", stats["core_passes"], label)
        yield _counter("coda_rows", "Rows through coda and head for sampling", stats["rows"]["turn"], label)
        yield _counter("readouts", "Coda-and-head evaluations, those of signals included", stats["readouts"], label)
        yield _gauge("slot_occupancy", "Mean share of a core launch's rows in use since the start", occupancy, label)
        yield _counter("scheduler_host_seconds", "Engine time outside launches", host, label)
        for stage, seconds in stats["seconds"].items():
            yield _counter("stage_seconds_" + stage, f"Time in {stage} launches", seconds, label)
        for stage, count in stats["launches"].items():
            yield _counter("launches_" + stage, f"Launches of {stage}", count, label)
        yield _gauge("engine_up", "1 while the engine works", 0 if self._engine.ended else 1, label)
