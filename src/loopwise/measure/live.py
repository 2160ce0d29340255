"""Live evaluation: teacher-forced decoding of many windows side by side, position by position, under any exit policy.

Each window is decoded exactly as `generate.Decoder.step` would decode its tokens one by one from an empty cache: an
exited token freezes, later tokens and deeper passes see the keys and values it left as the KV layout says, and the
coda's come from its exit state. Rows that left are dropped from the next pass. Only the order of work differs from
the decoder, and tests hold the two equal token by token.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopwise.exit.policy import Policy
from loopwise.exit.signals import Look, Probe, require
from loopwise.measure.replay import Outcome, checks_signal, reads_out, recorded_depths
from loopwise.measure.trace import Progress
from loopwise.measure.windows import Batch, Windows
from loopwise.model.kv_layout import KVLayout, kv_layout
from loopwise.model.recurrent import RecurrentLM

CACHE_BYTES = 1 << 29  # keys and values held at a time: sets how many windows run side by side
MAX_ROWS = 256


class BatchedCache:
    """Attention context of many windows that are all at the same position, with a dense cache.

    Reading by plane would gather every position separately. Instead, a position that leaves at depth d is copied to
    the planes that deeper queries look at (`settle`), so that a query at depth i always reads plane `write(i)` whole.
    """

    def __init__(self, model: RecurrentLM, layout: KVLayout, deepest: int, windows: int, time: int) -> None:
        c, weight = model.config, model.embedding.weight
        self.core = range(c.prelude_layers, c.prelude_layers + c.core_layers)
        self.layout, self.deepest, self.time = layout, deepest, time
        size = (windows, c.kv_heads, time, c.width)
        planes = [layout.num_planes(deepest) if i in self.core else 1 for i in range(c.num_layers)]
        self.keys = [torch.zeros(n, *size, dtype=weight.dtype, device=weight.device) for n in planes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.position, self.depth = 0, 0
        self.windows: tuple[int, ...] = ()
        self.rows: Tensor = torch.arange(windows, device=weight.device)
        self.whole = windows  # rows are 0..whole-1 in order, or 0 if they are not
        self.positions, self.turn = torch.zeros(0, dtype=torch.long), torch.zeros(0)

    def at(
        self, rows: Int[Tensor, "rows"], depth: int, turn: Float[Tensor, "two active columns"] | None = None
    ) -> "BatchedCache":
        """Point at the windows of the next call. `turn` is what the prelude set for all active windows (the first
        `turn.shape[1]` ones); none before the prelude."""
        self.rows, self.depth = rows, depth
        self.positions = torch.full_like(rows, self.position)
        active = len(rows) if turn is None else turn.shape[1]
        self.whole = active if len(rows) == active else 0
        if turn is not None:
            self.turn = turn if self.whole else turn[:, rows]
        return self

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "rows heads width"],
        k: Float[Tensor, "rows kv width"],
        v: Float[Tensor, "rows kv width"],
    ) -> Float[Tensor, "rows heads width"]:
        """Write k and v of these rows, then attend over every position so far of each row's window."""
        plane = self.layout.write(self.depth) if self.depth else 0
        self.keys[layer][plane, self.rows, :, self.position] = k
        self.values[layer][plane, self.rows, :, self.position] = v
        first = max(0, self.position + 1 - self.windows[layer]) if self.windows and self.windows[layer] else 0
        keys, values = (self._read(cache[layer][plane], first) for cache in (self.keys, self.values))
        out = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=q.shape[1] != k.shape[1])
        return out[:, :, 0]

    def _read(self, plane: Float[Tensor, "windows kv time width"], first: int) -> Float[Tensor, "rows kv past width"]:
        past = plane[:, :, first : self.position + 1]
        return past[: self.whole] if self.whole else past.index_select(0, self.rows)

    def settle(self, rows: Int[Tensor, "rows"], depth: int) -> None:
        """Rows left at `depth`: put what deeper queries read of them where those will look."""
        for i in range(depth + 1, self.deepest + 1):
            source, target = self.layout.read(i, depth), self.layout.write(i)
            if source == target:
                continue
            for layer in self.core:
                for cache in (self.keys[layer], self.values[layer]):
                    cache[target, rows, :, self.position] = cache[source, rows, :, self.position]


class _Rows(NamedTuple):
    """The rows still looping: window number, states, carry, last readout, and the depths to play back if any."""

    window: Int[Tensor, "rows"]
    e: Float[Tensor, "rows d"]
    state: Float[Tensor, "rows d"]
    prev: Float[Tensor, "rows d"]
    prev2: Float[Tensor, "rows d"]
    carry: Int[Tensor, "rows"]
    log_probs: Tensor | None
    recorded: Tensor | None

    def keep(self, mask: Bool[Tensor, "rows"]) -> "_Rows":
        recorded = None if self.recorded is None else self.recorded[mask]
        log_probs = None if self.log_probs is None else self.log_probs[mask]
        return _Rows(*(x[mask] for x in self[:6]), log_probs, recorded)  # type: ignore[misc]


@torch.inference_mode()
def live(
    model: RecurrentLM,
    windows: Windows,
    policy: Policy,
    *,
    layout: str = "depth_indexed",
    probe: Probe | None = None,
    rows: int = MAX_ROWS,
    progress: Progress = lambda tokens: None,
) -> Outcome:
    """Decode every window under `policy`, teacher-forced; one entry per prediction, in the order of the windows.

    At most `rows` windows run side by side (fewer if their cache would exceed `CACHE_BYTES`). A policy deeper than
    the model, a probe policy without a probe, or an unknown layout raises `InputError`.
    """
    policy = policy.bind(model.config.max_depth)
    require(policy, policy.reads, probe)
    chosen, recorded = kv_layout(layout), recorded_depths(policy, windows.num_tokens)
    found = Outcome(
        np.empty(windows.num_tokens, dtype=np.float32), *(np.zeros(windows.num_tokens, dtype=np.int64) for _ in "1234")
    )
    order, start = np.argsort(-windows.lengths, kind="stable"), 0
    while start < len(order):
        time = int(windows.lengths[order[start]])
        count = min(rows, fitting(model, chosen, policy.max_depth or 1, time))
        batch = Batch(windows, order[start : start + count], model.embedding.weight.device)
        _Run(model, chosen, policy, probe, batch, recorded).run(found, windows, progress)
        start += count
    return found


def fitting(model: RecurrentLM, layout: KVLayout, deepest: int, time: int) -> int:
    """How many windows of `time` positions fit in `CACHE_BYTES` (at least one)."""
    c = model.config
    layers = c.prelude_layers + c.coda_layers + c.core_layers * layout.num_planes(deepest)
    item = model.embedding.weight.element_size()
    return max(1, CACHE_BYTES // (2 * layers * time * c.kv_heads * c.width * item))


class _Run:
    """One batch of windows, from its first position to its last."""

    def __init__(
        self,
        model: RecurrentLM,
        layout: KVLayout,
        policy: Policy,
        probe: Probe | None,
        batch: Batch,
        recorded: Tensor | None,
    ) -> None:
        self.model, self.policy, self.probe, self.batch, self.recorded = model, policy, probe, batch, recorded
        self.rule, self.signal = policy.rule(), policy.reads
        self.lengths = batch.valid.sum(1)
        model.rotary.reserve(int(self.lengths.max()))
        self.cache = BatchedCache(model, layout, policy.max_depth or 1, *batch.tokens.shape)

    def run(self, found: Outcome, windows: Windows, progress: Progress) -> None:
        offsets = torch.from_numpy(windows.offsets[self.batch.windows])
        for position in range(self.batch.tokens.shape[1]):
            active = int((self.lengths > position).sum())  # windows come longest first
            place = offsets[:active] + position
            self._position(position, active, place.numpy(), found)
            progress(active)

    def _position(self, position: int, active: int, place: np.ndarray, found: Outcome) -> None:
        """One token of each of the first `active` windows; results go to `found` at `place`."""
        model, cache = self.model, self.cache
        cache.position = position
        window = torch.arange(active, device=cache.rows.device)
        e = model.prelude(self.batch.tokens[:active, position], cache.at(window, 0))
        turn, state = cache.turn, model.init_state(e, cache)
        recorded = None if self.recorded is None else self.recorded[place].to(window.device)
        live = _Rows(window, e, state, state, state, self.rule.init(active, window.device), None, recorded)
        depth = readouts = checks = 0
        late: list[tuple[Tensor, Tensor]] = []  # left without a readout of their exit state: window, state
        while len(live.window):
            depth += 1
            live, logits, leave = self._pass(live, depth, turn)
            readouts += logits is not None
            checks += checks_signal(self.rule, self.signal, depth)
            gone = live.window[leave]
            if len(gone):
                cache.settle(gone, depth)
                at = place[gone.cpu().numpy()]
                found.depth[at], found.checks[at], found.readouts[at] = depth, checks, readouts + (logits is None)
                if logits is None:
                    late.append((gone, live.state[leave]))
                else:
                    self._score(logits[leave], gone, position, place, found)
            live = live.keep(~leave)
        if late:
            gone, state = (torch.cat(parts) for parts in zip(*late, strict=True))
            order = gone.argsort()
            logits = self._read(gone[order], state[order], turn)
            self._score(logits, gone[order], position, place, found)

    def _pass(self, live: _Rows, depth: int, turn: Tensor) -> tuple[_Rows, Tensor | None, Tensor]:
        """One core pass of the live rows: their new states, the logits if the rule has them read, and who leaves."""
        state = self.model.core(live.state, live.e, self.cache.at(live.window, depth, turn))
        live = live._replace(state=state, prev=live.state, prev2=live.prev)
        before, logits = live.log_probs, None
        if reads_out(self.rule, self.signal, depth):
            logits = self._read(live.window, state, turn)
            live = live._replace(log_probs=logits.log_softmax(-1))
        value = live.recorded
        if self.signal and checks_signal(self.rule, self.signal, depth):
            look = Look(state, live.prev, live.prev2, live.log_probs, before)
            value = self.signal.value(look, depth, self.probe)
        leave, carry = self.rule.step(value, depth, live.carry)
        return live._replace(carry=carry), logits, leave

    def _read(self, window: Tensor, state: Tensor, turn: Tensor) -> Float[Tensor, "rows vocab"]:
        return self.model.coda(state, self.cache.at(window, 0, turn))

    def _score(self, logits: Tensor, window: Tensor, position: int, place: np.ndarray, found: Outcome) -> None:
        at = place[window.cpu().numpy()]
        targets = self.batch.targets[window, position]
        found.nll[at] = F.cross_entropy(logits, targets, reduction="none").cpu().numpy()
        found.top1[at] = logits.argmax(-1).cpu().numpy()
