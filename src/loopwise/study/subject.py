"""What is studied: one checkpoint on one named corpus, with its trace and the text that trains learned exits."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import InputError
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.look import A2
from loopwise.exit.signals import SIGNALS, Probe, supported
from loopwise.measure.probe import MIN_TOKENS, Labelled, fit, label
from loopwise.measure.stats import draw_weights
from loopwise.measure.trace import Trace, load_trace, save_trace, trace
from loopwise.measure.windows import Windows, groups, pack
from loopwise.model.recurrent import RecurrentLM
from loopwise.store import Store, key_of
from loopwise.study.settings import DEPTHS, Settings

TRACED = ("kl", "kl_prev", "entropy", "margin", "rel_change", "cosine", "accel", "distil", "fisher", "probe")
TRAINING = {"factbook": "factbook:train", "puzzles": "puzzles:1-8:96:7"}
Tell = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A named text: its sources as `--text` takes them."""

    name: str
    sources: tuple[str, ...]

    @property
    def puzzles(self) -> bool:
        """Whether all of it are puzzles, which begin without an end-of-document token, as in training."""
        return all(source.startswith("puzzles") for source in self.sources)

    @property
    def training(self) -> tuple[str, ...]:
        """Where text for learned exits comes from (documents that are evaluated are left out by hash)."""
        return tuple(TRAINING.get(source, source) for source in self.sources)


def corpora(values: Sequence[str]) -> list[Corpus]:
    """Read `--text NAME=SOURCE` (repeatable; one name may be given several sources). A source without a name is named
    by its last part. Raises `InputError` for an empty name or source."""
    found: dict[str, list[str]] = {}
    for value in values:
        name, equals, source = value.partition("=")
        if not equals:
            name, source = Path(value.rstrip("/")).stem.split(":")[0], value
        if not name or not source or not name.replace("-", "").replace("_", "").isalnum():
            raise InputError(f"text '{value}' has no plain name and source: use NAME=SOURCE, e.g. stories=tales.jsonl")
        found.setdefault(name, []).append(source)
    if not found:
        raise InputError("text is not given: use --text NAME=SOURCE, e.g. --text factbook=factbook")
    return [Corpus(name=name, sources=tuple(sources)) for name, sources in found.items()]


class Subject:
    """One checkpoint on one corpus. Everything heavy is computed once, when first asked for."""

    def __init__(
        self, checkpoint: Checkpoint, model: RecurrentLM, corpus: Corpus, settings: Settings, store: Store, tell: Tell
    ) -> None:
        self.checkpoint, self.model, self.corpus = checkpoint, model, corpus
        self.settings, self.store, self.tell = settings, store, tell
        self.tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
        self.tokenizer.check_vocab(checkpoint.config.vocab_size)
        self.windows = self._pack(corpus.sources, settings.tokens)

    @property
    def name(self) -> str:
        """`checkpoint/corpus`, the folder of its records."""
        return f"{self.checkpoint.name}/{self.corpus.name}"

    @property
    def max_depth(self) -> int:
        """Deepest pass that is looked at."""
        return min(DEPTHS, self.checkpoint.config.max_depth)

    @property
    def reference(self) -> int:
        """The training mean, as an integer depth of at least 2."""
        return max(2, min(self.max_depth, round(self.checkpoint.config.mean_depth)))

    @property
    def identity(self) -> dict[str, object]:
        """What every cached result of this subject depends on."""
        return {"weights": self.checkpoint.digest, "text": self.windows.digest, "fit": self.settings.fit_tokens}

    def _pack(self, sources: Sequence[str], tokens: int, used: frozenset[str] = frozenset()) -> Windows:
        return pack(self.tokenizer, documents(sources), context=self._context, max_tokens=tokens, exclude=used,
                    lead=not self.corpus.puzzles)  # fmt: skip

    @property
    def _context(self) -> int:
        return self.checkpoint.config.context

    @cached_property
    def training(self) -> Windows | None:
        """Text that trains learned exits, from documents that are not evaluated; None if there is too little."""
        try:
            found = self._pack(self.corpus.training, self.settings.fit_tokens, frozenset(self.windows.hashes))
        except InputError:
            return None
        return found if found.num_tokens >= MIN_TOKENS else None

    @cached_property
    def labelled(self) -> Labelled | None:
        """States of the training text at depths below the reference, and whether the argmax still changes."""
        return None if self.training is None else label(self.model, self.training, self.reference)

    @cached_property
    def probe(self) -> Probe:
        """A2 fitted here (where there is text for it), with the checkpoint's own tensors for other fitted signals."""
        stored = self.checkpoint.probe() or Probe()
        if self.labelled is None:
            return stored
        self.tell(f"{self.name}: training A2", 0.0)
        made = fit(self.labelled)
        return stored._replace(**{name: getattr(made, name) for name in A2})

    @cached_property
    def trace(self) -> Trace:
        """All signals of all tokens at all depths, from the cache where it is there."""
        names = [n for n in TRACED if n in SIGNALS and supported(n, self.probe)]
        key = key_of({"trace": 2, "depth": self.max_depth, "signals": names, **self.identity})
        path = self.store.scratch() / f"trace-{key}.npz"
        if not path.is_file():
            what, done = f"{self.name}: tracing to depth {self.max_depth}", [0]

            def advance(more: int) -> None:
                done[0] += more
                self.tell(what, done[0] / self.windows.num_tokens)

            found = trace(self.model, self.windows, max_depth=self.max_depth, signals=names, probe=self.probe,
                          progress=advance)  # fmt: skip
            save_trace(path, found, vocab_size=self.checkpoint.config.vocab_size)
        found = load_trace(path)  # always as stored: a resumed run sees what the first one saw
        kinds = {name: np.int32 if name == "top1" else np.float32 for name in found.columns}
        columns = {name: values.astype(kinds[name]) for name, values in found.columns.items()}
        return dataclasses.replace(found, columns=columns)

    @cached_property
    def group(self) -> np.ndarray:
        """Document (or window, where documents are few) of every token: what intervals resample."""
        return groups(self.trace.index)[0]

    @property
    def unit(self) -> str:
        """`documents` or `windows`."""
        return groups(self.windows.index)[1]

    @cached_property
    def weights(self) -> np.ndarray:
        """Bootstrap weights `[draws, groups]`."""
        return draw_weights(int(self.group.max()) + 1, draws=self.settings.draws, seed=self.settings.seed)
