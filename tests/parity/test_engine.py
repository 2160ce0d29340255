"""The engine against its specification: the same tokens and exit depths as the reference decoder, whatever happens.

Batch mix, arrival order, launch sizes, chunk size, prefix cache cold or warm, layout, policy, sampling, cancellation
and memory pressure are drawn at random; every finished request must equal the reference decoder run alone.
"""

import random
from functools import lru_cache

import pytest
import torch

from loopwise.config import ModelConfig
from loopwise.engine.engine import Engine
from loopwise.engine.request import EngineConfig, Event, Request
from loopwise.engine.sequence import collect
from loopwise.exit.look import RANK, Probe
from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS
from loopwise.generate import Decoder, generate
from loopwise.model.kv_layout import LAYOUTS
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

# Thousands of small launches: the checks would take most of the time, and tests/unit/engine has them on.
pytestmark = pytest.mark.usefixtures("no_shape_checks")
VOCAB, DEPTH = 61, 8
POLICIES = (
    "depth=1", "depth=3", "depth=8", "rel_change<0.3", "rel_change<0.8", "rel_change<0.4/0.2,max=6",
    "rel_change<0.25,lag=1", "accel<0.4,min=2", "cosine<0.03,patience=2", "kl<0.01", "kl_prev<0.02,every=2,max=7",
    "entropy<3.9,min=2", "margin<0.97", "argmax<0.5,patience=2", "probe<0.5", "fisher<0.2,min=3", "extrap<0.4",
)  # fmt: skip


@lru_cache
def make(**changes) -> RecurrentLM:
    shape = dict(
        vocab_size=VOCAB, d_model=32, num_heads=4, num_kv_heads=2, d_ff=48, prelude_layers=1, core_layers=2,
        coda_layers=1, context=64, max_depth=DEPTH, mean_depth=5.0,
    )  # fmt: skip
    return RecurrentLM(ModelConfig(**{**shape, **changes})).initialise(0).eval().requires_grad_(False)


@lru_cache
def fitted() -> Probe:
    g = torch.Generator().manual_seed(1)
    return Probe(
        weight=torch.randn(3, 32, generator=g), bias=torch.zeros(3), mean=torch.zeros(32), scale=torch.ones(32),
        fisher=torch.randn(RANK, 32, generator=g), fisher_raw=torch.randn(RANK, 32, generator=g),
        sketch=torch.randn(RANK, 32, generator=g), distil_state=torch.randn(32, generator=g),
        distil_terms=torch.randn(8, 4, generator=g),
    )  # fmt: skip


def expected(model: RecurrentLM, engine: Engine, request: Request) -> tuple[list[int], list[int], str]:
    policy = engine.policy if request.policy is None else request.policy
    policy = Policy.parse(policy) if isinstance(policy, str) else policy
    decoder = Decoder(
        model, policy.bind(engine.max_depth), length=64, layout=engine.config.layout, prefill=engine.prefill,
        probe=engine.probe, chunk=engine.config.chunk or 1 << 30,
    )  # fmt: skip
    found = generate(decoder, list(request.prompt), request.params)
    return [t.id for t in found.tokens], [t.depth for t in found.tokens], found.finish


def draw_request(rng: random.Random, heads: list[list[int]], policies: tuple[str, ...]) -> Request:
    prompt = rng.choice(heads)[: rng.randint(1, 24)] + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 5))]
    sampled = rng.random() < 0.5
    params = SamplingParams(
        max_tokens=rng.randint(1, 9),
        temperature=rng.choice([0.7, 1.0, 1.5]) if sampled else 0.0,
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1.0, 0.8]),
        min_p=rng.choice([0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.4]),
        logit_bias=rng.choice([{}, {3: 2.0, 60: -5.0}]),
        seed=rng.randrange(1000),
        min_tokens=rng.choice([0, 3]),
        stop_ids=rng.choice([(), (7, 11, 30)]),
    )
    policy = rng.choice(policies)
    if rng.random() < 0.15:
        return Request(
            prompt=prompt, params=params, policy=Policy(recorded=tuple(rng.randint(1, DEPTH) for _ in range(4)))
        )
    return Request(prompt=prompt, params=params, policy=policy, priority=rng.choice([0, 0, 1]), salt=rng.choice("aab"))


def drive(engine: Engine, requests: list[Request], rng: random.Random, cancel: float = 0.1) -> dict[str, list[Event]]:
    """Submit at random moments, cancel some, run to the end; events of what finished."""
    waiting, events, names, cancelled = list(requests), {}, {}, set()
    while waiting or engine.busy:
        while waiting and (rng.random() < 0.4 or not engine.busy):
            request = waiting.pop(0)
            names[engine.submit(request)] = request
        for event in engine.step():
            assert event.id not in cancelled
            events.setdefault(event.id, []).append(event)
        if rng.random() < cancel and engine.requests:
            victim = rng.choice(engine.requests)
            engine.cancel(victim)
            cancelled.add(victim)
        engine.planner.check_integrity()
    assert engine.blocks.num_held == 0
    assert engine.blocks.num_free + engine.blocks.num_cached == engine.blocks.total
    assert names.keys() == events.keys() | cancelled
    return {name: found for name, found in events.items() if name not in cancelled}


def check(model: RecurrentLM, config: EngineConfig, policies: tuple[str, ...], seed: int, count: int = 9) -> None:
    rng = random.Random(seed)
    engine = Engine(model, config, probe=fitted())
    heads = [[rng.randrange(VOCAB) for _ in range(24)] for _ in range(2)]
    requests = [draw_request(rng, heads, policies) for _ in range(count)]
    by_name = {}
    for number, request in enumerate(requests):
        by_name[f"x{number}"] = requests[number] = Request(**{**vars(request), "id": f"x{number}"})
    found = drive(engine, requests, rng)
    for name, events in found.items():
        output = collect(events)
        assert (output.tokens, output.depths, output.finish) == expected(model, engine, by_name[name]), by_name[name]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("seed", "lag", "padded"), [(0, 0, ()), (1, 0, ()), (0, 1, ()), (1, 1, (2, 3)), (2, 1, (8,))])
def test_random_mixes(layout, seed, lag, padded):
    """Waiting for exits or reading them a launch late, launches as they are or padded: always the reference's tokens,
    so the same for the same seed."""
    rng = random.Random(f"{layout}{seed}")
    config = EngineConfig(
        layout=layout,
        policy="depth=5",
        prefill=rng.choice(["depth=4", "rel_change<0.3", "depth=6", "accel<0.5,min=2"]),
        max_rows=rng.choice([1, 3, 8]),
        places=rng.choice([1, 4, 9]),
        min_turn=rng.choice([1, 2, 5]),
        min_prefill=rng.choice([1, 3]),
        chunk=rng.choice([0, 3, 8, 16]),
        prefill_tokens=rng.choice([4, 30]),
        kv_tokens=rng.choice([64, 200]),
        prefix_cache=rng.choice([True, True, False]),
        lag=lag,
        padded=padded,
    )
    check(make(), config, POLICIES, seed)


@pytest.mark.parametrize("stops", [(), (28, 42)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_surplus_pass_leaves_no_trace(layout, stops):
    """A request alone, read a launch late, runs every token once more that its signal stopped, and once after its end:
    counted, and the same tokens, depths and (up to its last position) KV memory to the bit as without."""
    model, found = make(), []
    params = SamplingParams(max_tokens=12, stop_ids=stops)
    for lag in (0, 1):
        engine = Engine(model, EngineConfig(policy="rel_change<0.8", layout=layout, kv_tokens=64, lag=lag))
        output = collect(drive(engine, [Request(prompt=[5, 9, 2], params=params, id="x")], random.Random(0), 0)["x"])
        pool = engine.runner.pool
        kept = [t.unflatten(0, (-1, pool.blocks))[:, : pool.nowhere] for t in (*pool.keys, *pool.values)]
        found.append((output.tokens, output.depths, kept))
        surplus, passes = (engine.stats()[key] for key in ("surplus_passes", "core_passes"))
        early = sum(depth < DEPTH for depth in output.depths[1:])
        assert passes == sum(output.depths[1:])
        assert surplus == (early + (output.finish == "stop") if lag else 0)
    (tokens, depths, kept), (late_tokens, late_depths, late_kept) = found
    assert (tokens, depths) == (late_tokens, late_depths) and len({*depths[1:]}) > 1
    assert stops or all(torch.equal(a, b) for a, b in zip(kept, late_kept, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        dict(num_kv_heads=None, state_init="normal", injection="add"),
        dict(state_init="embed", injection="diagonal", coda_layers=0, qk_norm="head"),
        dict(prelude_layers=0, injection="none", state_init="embed", norm="pre", windows=(5, 0, 7)),
        dict(value_layers=(0, 2), value_gate=8, coda_norm=True, head_dim=16, logit_softcap=20.0),
    ],
    ids=lambda c: ",".join(c),
)
def test_other_wirings(changes):
    """Windows, value embeddings, seeded states, missing preludes and codas: the context carries all of it."""
    for lag in (0, 1):
        config = EngineConfig(policy="depth=5", prefill="rel_change<0.3", max_rows=4, chunk=5, kv_tokens=200, lag=lag)
        check(make(**changes), config, ("depth=6", "rel_change<0.3", "kl<0.01"), seed=5)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("lag", [0, 1])
def test_every_signal(name, lag):
    """Each signal under a threshold that some tokens pass and some do not."""
    model = make()
    engine = Engine(model, EngineConfig(policy="depth=6", max_rows=3, kv_tokens=300, lag=lag), probe=fitted())
    requests = [
        Request(prompt=[i, 2 * i, 5], policy=f"{name}<{threshold:g}", id=f"{i}-{threshold}",
                params=SamplingParams(max_tokens=4))
        for i in range(2) for threshold in (1e-2, 0.1, 0.5, 1.5)
    ]  # fmt: skip
    found = drive(engine, requests, random.Random(0), cancel=0)
    for request in requests:
        output = collect(found[request.id or ""])
        assert (output.tokens, output.depths, output.finish) == expected(model, engine, request)


def test_a_warm_prefix_serves_every_tier_alike():
    """Cold and warm tokens are equal for every pair of tiers: prompts are computed under one policy."""
    model = make()
    prompt = [(i * 7) % VOCAB for i in range(30)]
    tiers = ("depth=2", "rel_change<0.3", "kl<0.01")
    cold = {}
    for tier in tiers:
        engine = Engine(model, EngineConfig(policy="depth=5", kv_tokens=300))
        request = Request(prompt=prompt, policy=tier, params=SamplingParams(max_tokens=4), id="x")
        cold[tier] = collect(drive(engine, [request], random.Random(0), 0)["x"])
        assert cold[tier].cached_tokens == 0
    for first in tiers:
        engine = Engine(model, EngineConfig(policy="depth=5", kv_tokens=300))
        requests = [
            Request(prompt=prompt, policy=tier, params=SamplingParams(max_tokens=4), id=f"{n}{tier}")
            for n, tier in enumerate([first, *tiers])
        ]
        for request in requests:
            warm = collect(drive(engine, [request], random.Random(0), 0)[request.id or ""])
            assert (warm.tokens, warm.depths) == (cold[str(request.policy)].tokens, cold[str(request.policy)].depths)
            assert (warm.cached_tokens > 0) == (request is not requests[0])


def test_generated_text_is_not_cached_but_recomputed_as_prompt():
    """Second turn of a conversation: only the first prompt's blocks are found again, and tokens equal the reference."""
    model = make()
    engine = Engine(model, EngineConfig(policy="rel_change<0.3", prefill="depth=5", kv_tokens=300))
    prompt = [(i * 5) % VOCAB for i in range(17)]
    one = Request(prompt=prompt, params=SamplingParams(max_tokens=9), id="1")
    answer = collect(drive(engine, [one], random.Random(0), 0)["1"]).tokens
    two = Request(prompt=[*prompt, *answer, 3, 4], params=SamplingParams(max_tokens=5), id="2")
    output = collect(drive(engine, [two], random.Random(0), 0)["2"])
    assert output.cached_tokens == 16
    assert (output.tokens, output.depths, output.finish) == expected(model, engine, two)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batch_mates_change_nothing(temperature):
    """The same request alone and among 11 others: equal tokens, depths and log-probabilities (to fp32 rounding)."""
    model, params = make(), SamplingParams(max_tokens=12, temperature=temperature, seed=3, logprobs=2)
    subject = Request(prompt=[5, 9, 2, 44], params=params, policy="rel_change<0.3", id="x")
    others = [
        Request(prompt=[i] * (i + 1), params=SamplingParams(max_tokens=3 + i), policy=f"depth={1 + i % 8}")
        for i in range(11)
    ]
    outputs = []
    for requests in ([subject], [*others[:5], subject, *others[5:]]):
        engine = Engine(model, EngineConfig(policy="depth=5", max_rows=6))
        outputs.append(collect(drive(engine, requests, random.Random(1), 0)["x"]))
    assert outputs[0].tokens == outputs[1].tokens and outputs[0].depths == outputs[1].depths
    assert outputs[0].logprobs == pytest.approx(outputs[1].logprobs, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("lag", "padded"), [(0, ()), (1, ()), (1, None)], ids=["waits", "late", "late, graphs"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_cuda_it_equals_the_reference_there(layout, lag, padded):
    model = RecurrentLM(make().config).initialise(0).eval().requires_grad_(False).cuda()
    probe = fitted()
    rng = random.Random(0)
    config = EngineConfig(layout=layout, policy="depth=5", max_rows=4, chunk=8, kv_tokens=300, lag=lag, padded=padded)
    engine = Engine(model, config, probe=probe)
    heads = [[rng.randrange(VOCAB) for _ in range(24)]]
    policies = ("depth=3", "rel_change<0.3", "rel_change<0.8", "kl<0.01")
    requests = [Request(**{**vars(draw_request(rng, heads, policies)), "id": str(i)}) for i in range(8)]
    found = drive(engine, requests, rng)
    for name, events in found.items():
        output = collect(events)
        assert (output.tokens, output.depths, output.finish) == expected(model, engine, requests[int(name)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_decoding_on_cuda_never_waits_for_the_device():
    """With torch told to refuse synchronisation, greedy decoding runs once its launches are recorded."""
    model = RecurrentLM(make().config).initialise(0).eval().requires_grad_(False).cuda()
    engine = Engine(model, EngineConfig(policy="rel_change<0.8", max_rows=4, kv_tokens=300, padded=(4,)))
    for number in range(4):
        engine.submit(Request(prompt=[5, 9, number], params=SamplingParams(max_tokens=40)))
    for _ in range(20):
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
