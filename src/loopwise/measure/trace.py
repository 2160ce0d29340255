"""Traces: every exit signal and the loss of every token at every depth, from one run to max depth.

Semantics: *uniform depth*. All positions of a window take pass i together, and the readout at depth i runs the coda
over the states of all positions at depth i, which is the model at fixed depth i. What a policy would do to the
context of later tokens is not in a trace: see `live.py`.

Memory: one batch of states (`[depth, batch tokens, d]`) and a few `[rows, vocab]` buffers; nothing is ever held for
all of tokens, depths and vocabulary. Columns are float32 `[depth, tokens]`, on disk while being filled if they would
take more than `IN_MEMORY_BYTES`; a saved trace holds float16 signals, float32 losses and integer top-1 ids.
"""

import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor

from loopwise.config import InputError
from loopwise.exit.signals import SIGNALS, Look, Probe, supported
from loopwise.measure.windows import Batch, Windows
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import sync_folder

IN_MEMORY_BYTES = 1 << 30
READOUT_VALUES = 1 << 22  # logits held at a time, per buffer
BATCH_TOKENS = 4096
BASE = ("nll", "top1")  # the loss of the true next token (nats), and the id that the readout ranks first
DERIVED = ("argmax",)  # not stored: follows from top1
Progress = Callable[[int], None]


class Pass(NamedTuple):
    """States after pass `depth`, of the two passes before, and the attention context they ran in."""

    depth: int
    state: Float[Tensor, "batch time d"]
    prev: Float[Tensor, "batch time d"]
    prev2: Float[Tensor, "batch time d"]
    ctx: DenseCausal


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Recorded columns, `[depth, tokens]` each (entry [i] is depth i + 1), and `index` columns of one entry per token.

    A signal is NaN below its first depth. `digest` identifies the text.
    """

    columns: Mapping[str, np.ndarray]
    index: dict[str, np.ndarray]
    max_depth: int
    digest: str

    @property
    def num_tokens(self) -> int:
        """Predictions recorded."""
        return len(self.index["target"])

    def at(self, name: str, depth: int) -> Num[np.ndarray, "tokens"]:
        """One column at one depth. The signal `argmax` is derived: 1 where top1 differs from the pass before."""
        if name == "argmax":
            return (self.columns["top1"][depth - 1] != self.columns["top1"][depth - 2]).astype(np.float32)
        if name not in self.columns:
            raise InputError(f"the trace has no column '{name}': run measure again with that signal")
        return self.columns[name][depth - 1]

    def has(self, signal: str) -> bool:
        """Whether a signal can be replayed."""
        return signal in self.columns or (signal in DERIVED and "top1" in self.columns)

    def rows(self, chosen: np.ndarray) -> "Trace":
        """The trace of some of the tokens (a mask or row numbers)."""
        return Trace(
            columns={name: values[:, chosen] for name, values in self.columns.items()},
            index={name: values[chosen] for name, values in self.index.items()},
            max_depth=self.max_depth,
            digest=self.digest,
        )

    def correct(self, depth: int) -> np.ndarray:
        """Whether the readout's first choice is the true next token."""
        return self.columns["top1"][depth - 1] == self.index["target"]


def passes(model: RecurrentLM, tokens: Tensor, max_depth: int) -> Iterator[Pass]:
    """Run the core `max_depth` times over whole windows (right padding is harmless: attention is causal)."""
    ctx = DenseCausal.over(tokens)
    e = model.prelude(tokens, ctx)
    state = model.init_state(e, ctx)
    prev = state
    for depth in range(1, max_depth + 1):
        ctx.depth = depth
        prev2, prev, state = prev, state, model.core(state, e, ctx)
        yield Pass(depth, state, prev, prev2, ctx)


@torch.inference_mode()
def trace(
    model: RecurrentLM,
    windows: Windows,
    *,
    max_depth: int,
    signals: Collection[str] | None = None,
    probe: Probe | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = lambda tokens: None,
) -> Trace:
    """Record `signals`, loss and top-1 id. Default: all signals that need no fitted tensors or find them in `probe`.

    `progress` is told how many more tokens are done. Depths beyond the model's raise `InputError`.
    """
    check_depth("max-depth", max_depth, model)
    wanted = [name for name in (SIGNALS if signals is None else signals) if name not in DERIVED]
    wanted = [name for name in wanted if supported(name, probe)]
    columns = _allocate([*BASE, *wanted], max_depth, windows.num_tokens)
    device = model.embedding.weight.device
    for batch in windows.batches(batch_tokens, device):
        hidden = _latent(model, batch, wanted, probe, max_depth, columns)
        _readouts(model, batch, hidden, wanted, columns)
        progress(len(batch.rows))
    return Trace(columns=columns, index=windows.index, max_depth=max_depth, digest=windows.digest)


def _latent(
    model: RecurrentLM,
    batch: Batch,
    wanted: list[str],
    probe: Probe | None,
    max_depth: int,
    columns: dict[str, np.ndarray],
) -> Float[Tensor, "depth rows d"]:
    """Run all passes; record signals of the state; return what the head reads at every depth, valid rows only."""
    free = [SIGNALS[name] for name in wanted if not SIGNALS[name].readouts]
    kept: list[Tensor] = []
    for depth, *states, ctx in passes(model, batch.tokens, max_depth):
        look = Look(*(s[batch.valid] for s in states))
        for signal in free:
            if depth >= signal.first_depth:
                columns[signal.name][depth - 1, batch.rows] = signal.value(look, depth, probe).float().cpu().numpy()
        kept.append(model.hidden(states[0], ctx)[batch.valid])
    return torch.stack(kept)


def _readouts(
    model: RecurrentLM,
    batch: Batch,
    hidden: Float[Tensor, "depth rows d"],
    wanted: list[str],
    columns: dict[str, np.ndarray],
) -> None:
    """Loss, top-1 and signals of the output, a slice of rows at a time through all depths, in fp32."""
    read = [SIGNALS[name] for name in wanted if SIGNALS[name].readouts]
    targets = batch.targets[batch.valid]
    size = max(16, READOUT_VALUES // model.config.vocab_size)
    for start in range(0, len(targets), size):
        part = slice(start, start + size)
        rows, before = batch.rows[part], None
        for i in range(len(hidden)):
            log_probs = model.logits(hidden[i, part]).log_softmax(-1)
            look = Look(hidden[i, part], hidden[i, part], None, log_probs, before)
            values = {s.name: s.value(look, i + 1, None) for s in read if i + 1 >= s.first_depth}
            values["nll"] = -log_probs.gather(1, targets[part, None])[:, 0]
            values["top1"] = log_probs.argmax(-1)
            for name, value in values.items():
                columns[name][i, rows] = value.cpu().numpy()
            before = log_probs


@torch.inference_mode()
def fixed_depth_nll(
    model: RecurrentLM, windows: Windows, depth: int, *, progress: Progress = lambda tokens: None
) -> Float[np.ndarray, "tokens"]:
    """Loss of every token at one uniform depth: the `nll` row of a trace, with a single readout."""
    check_depth("depth", depth, model)
    found = np.empty(windows.num_tokens, dtype=np.float32)
    size = max(16, READOUT_VALUES // model.config.vocab_size)
    for batch in windows.batches(BATCH_TOKENS, model.embedding.weight.device):
        state, ctx = next((p.state, p.ctx) for p in passes(model, batch.tokens, depth) if p.depth == depth)
        hidden, targets = model.hidden(state, ctx)[batch.valid], batch.targets[batch.valid]
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            logits = model.logits(hidden[part])
            found[batch.rows[part]] = F.cross_entropy(logits, targets[part], reduction="none").cpu().numpy()
        progress(len(batch.rows))
    return found


def check_depth(name: str, depth: int, model: RecurrentLM) -> None:
    """Refuse a depth that the model does not have."""
    if not 1 <= depth <= model.config.max_depth:
        raise InputError(f"{name} is {depth}: use 1 to {model.config.max_depth}, this model's max_depth")


def _allocate(names: list[str], depth: int, tokens: int) -> dict[str, np.ndarray]:
    """Columns filled with NaN (ids with -1); memory-mapped files without a name if they are large."""
    on_disk = 4 * len(names) * depth * tokens > IN_MEMORY_BYTES
    columns: dict[str, np.ndarray] = {}
    for name in names:
        kind: Any = np.int32 if name == "top1" else np.float32
        if on_disk:
            with tempfile.TemporaryFile() as file:  # the map keeps the space alive
                columns[name] = np.memmap(file, dtype=kind, mode="w+", shape=(depth, tokens))
        else:
            columns[name] = np.empty((depth, tokens), dtype=kind)
        columns[name].fill(-1 if name == "top1" else np.nan)
    return columns


def save_trace(path: Path, found: Trace, *, vocab_size: int) -> Path:
    """Write one compressed `.npz`, a column at a time, atomically.

    Columns of one entry per token (`token`, `target`, `document`, `window`, `position`), and `[depth, tokens]` columns:
    `nll` float32, `top1` uint16 (int32 above 65,536 ids), signals float16 (values beyond its range are clipped).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing")
    small = np.uint16 if vocab_size <= 1 << 16 else np.int32
    top = np.finfo(np.float16).max
    meta = np.frombuffer(found.digest.encode(), dtype=np.uint8)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, values in [*found.index.items(), *found.columns.items(), ("digest", meta)]:
                if name == "top1":
                    values = values.astype(small)
                elif values.ndim == 2 and name != "nll":
                    values = np.clip(values, -top, top).astype(np.float16)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def load_trace(path: Path) -> Trace:
    """Read a saved trace; a missing or damaged file raises `InputError`."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        digest = arrays.pop("digest").tobytes().decode()
        columns = {name: arrays[name] for name in arrays if arrays[name].ndim == 2}
        index = {name: arrays[name] for name in arrays if arrays[name].ndim == 1}
        return Trace(columns=columns, index=index, max_depth=len(columns["nll"]), digest=digest)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: run loopwise measure --out first") from None
    except Exception as error:  # numpy and zipfile raise many kinds on damaged archives
        raise InputError(f"{path}: cannot be read as a trace ({error}): run loopwise measure again") from None
