"""The reference decoder against the parallel forward pass and against its own definition."""

import pytest
import torch

from loopwise.config import InputError, ModelConfig
from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS, Look
from loopwise.generate import Decoder, generate
from loopwise.model.kv_layout import LAYOUTS
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams


def make(**changes) -> RecurrentLM:
    shape = dict(
        vocab_size=61,
        d_model=32,
        num_heads=4,
        num_kv_heads=2,
        d_ff=48,
        prelude_layers=1,
        core_layers=2,
        coda_layers=1,
        context=64,
        max_depth=8,
    )
    return RecurrentLM(ModelConfig(**{**shape, **changes})).initialise(0).eval()


PROMPT = [5, 9, 2, 44, 60, 0, 17]


@pytest.mark.parametrize("layout", ["depth_indexed", "last_exited"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_fixed_depth_equals_the_parallel_pass(layout, chunk):
    """Cached decoding equals uncached: same greedy tokens, logits to fp32 rounding, however the prompt is cut."""
    model = make()
    decoder = Decoder(model, Policy.parse("depth=5"), length=40, layout=layout, chunk=chunk)
    made = [t.id for t in generate(decoder, PROMPT, SamplingParams(max_tokens=12)).tokens]
    sequence = list(PROMPT)
    with torch.no_grad():
        for token in made:
            logits = model(torch.tensor([sequence]), 5)[0, -1]
            assert int(logits.argmax()) == token
            sequence.append(token)
    fresh = Decoder(model, Policy.parse("depth=5"), length=40, layout=layout, chunk=chunk)
    torch.testing.assert_close(fresh.prefill(sequence[:-1]), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prefill", ["depth=4", "rel_change<0.3", "accel<0.5,min=2", "cosine<0.05,patience=2"])
@pytest.mark.parametrize("layout", ["depth_indexed", "last_exited"])
def test_exact_layouts_do_not_see_chunks(layout, prefill):
    """Per-token exit in prefill: logits and exit depths are the same for every cut."""
    runs = []
    for chunk in (1, 2, 5, 100):
        decoder = Decoder(
            make(), Policy.parse("depth=8"), length=20, layout=layout, prefill=Policy.parse(prefill), chunk=chunk
        )
        runs.append((decoder.prefill(PROMPT), decoder.exit_depths))
    for logits, depths in runs[1:]:
        torch.testing.assert_close(logits, runs[0][0], atol=1e-5, rtol=1e-5)
        assert depths == runs[0][1]


def test_layouts_that_read_alike_agree_and_shared_differs():
    made = {}
    for layout in LAYOUTS:
        decoder = Decoder(make(), Policy.parse("rel_change<0.3,max=6"), length=40, layout=layout)
        made[layout] = [t.id for t in generate(decoder, PROMPT, SamplingParams(max_tokens=20)).tokens]
    assert made["depth_indexed"] == made["last_exited"]
    assert made["shared"] != made["depth_indexed"]


@pytest.mark.parametrize("name", [name for name, signal in SIGNALS.items() if not signal.tensors])
def test_exit_depth_follows_the_signal(name):
    """Record the signal along a full-depth step, then predict where each threshold leaves."""
    model = make()
    full = Decoder(model, Policy.parse("depth=8"), length=20)
    full.prefill(PROMPT)
    values = trace(model, full, token=3, name=name)
    for value in sorted({float(v) for v in values if v == v})[:6]:
        threshold = value * (1 + 1e-5) + 1e-7  # above the value in fp32, below the next
        decoder = Decoder(model, Policy.parse(f"{name}<{threshold!r}"), length=20, prefill=Policy.parse("depth=8"))
        decoder.prefill(PROMPT)
        _, depth, readouts = decoder.step(3)
        below = [i for i, v in enumerate(values, 1) if v == v and v < threshold]
        assert depth == (below[0] if below else 8)
        assert readouts >= 1


def trace(model: RecurrentLM, decoder: Decoder, token: int, name: str) -> list[float]:
    """The signal after passes 1..7 of one step at full depth (NaN before it is defined)."""
    signal, ctx = SIGNALS[name], decoder.ctx
    positions = torch.tensor([decoder.position])
    with torch.no_grad():
        e = model.prelude(torch.tensor([token]), ctx.at(positions, ctx.turn, 0))
        turn = ctx.turn
        states, readouts = [model.init_state(e, ctx)], [torch.zeros(1, 61)]
        for depth in range(1, 8):
            states.append(model.core(states[-1], e, ctx.at(positions, turn, depth)))
            readouts.append(model.coda(states[-1], ctx.at(positions, turn, 0)).log_softmax(-1))
    values = []
    for i in range(1, 8):
        defined = i >= signal.first_depth
        x = Look(states[i], states[i - 1], states[max(i - 2, 0)], readouts[i], readouts[i - 1])
        values.append(float(signal.value(x, i, None)) if defined else float("nan"))
    return values


def test_replay_plays_depths_back(tmp_path):
    model, policy = make(), Policy.parse("rel_change<0.4")
    first = generate(Decoder(model, policy, length=40), PROMPT, SamplingParams(max_tokens=12, temperature=1.0, seed=4))
    depths = [t.depth for t in first.tokens]
    recorded = Policy(recorded=tuple(depths[1:]))
    decoder = Decoder(model, recorded, length=40, prefill=Policy.parse("depth=8"))
    again = generate(decoder, PROMPT, SamplingParams(max_tokens=12, temperature=1.0, seed=4))
    assert [t.depth for t in again.tokens] == depths
    assert [t.id for t in again.tokens] == [t.id for t in first.tokens]


def test_kl_counts_a_readout_per_loop():
    decoder = Decoder(make(), Policy.parse("kl<1e-9,max=6"), length=20)
    decoder.prefill(PROMPT)
    assert decoder.step(1)[1:] == (6, 6)
    free = Decoder(make(), Policy.parse("rel_change<1e-9,max=6"), length=20)
    free.prefill(PROMPT)
    assert free.step(1)[1:] == (6, 1)


def test_stops():
    model = make()

    def run(**changes):
        decoder = Decoder(model, Policy.parse("depth=3"), length=60)
        text = generate(
            decoder,
            PROMPT,
            SamplingParams(max_tokens=16, temperature=1.0, seed=9, **changes),
            eos=changes.pop("eos", None),
            decode=lambda ids: "".join(chr(65 + i % 26) for i in ids),
        )
        return text

    free = run()
    third = free.tokens[2].id
    cut = run(stop_ids=(third,))
    assert cut.finish == "stop" and cut.tokens[-1].id == third and len(cut.tokens) <= 3
    piece = free.text[3:5]
    stopped = run(stop=(piece,))
    assert stopped.finish == "stop" and piece not in stopped.text
    assert run(stop=(piece,), include_stop=True).text.endswith(piece)
    assert free.finish == "length" and len(free.tokens) == 16


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda m: Decoder(m, Policy.parse("depth=9"), length=8), "use 1 to 8"),
        (lambda m: Decoder(m, Policy.parse("depth=4"), length=8, prefill=Policy.parse("kl<1")), "reads the output"),
        (lambda m: Decoder(m, Policy.parse("probe<0.1"), length=8), "no probe"),
        (lambda m: generate(Decoder(m, Policy.parse("depth=4"), length=8), [], SamplingParams()), "no tokens"),
        (lambda m: generate(Decoder(m, Policy.parse("depth=4"), length=8), [61], SamplingParams()), "0 to 60"),
    ],
)
def test_bad_input(act, says):
    with pytest.raises(InputError, match=says):
        act(make())
