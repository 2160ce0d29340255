"""The whole study: stages for every checkpoint and corpus, cached; then verdicts, report, figures and tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from loopwise import hardware
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.convergence import EPSILON
from loopwise.measure.difficulty import by_difficulty, make_answers
from loopwise.measure.trace import trace
from loopwise.measure.windows import require_length
from loopwise.model.cost import Cost
from loopwise.records import read_json
from loopwise.study import allocation, elasticity, ordering
from loopwise.study.book import Book, Pair
from loopwise.study.settings import Settings
from loopwise.study.store import Store
from loopwise.study.subject import Corpus, Subject, Tell

Json = dict[str, Any]
PUZZLES = {True: 60, False: 300}


class Stage(NamedTuple):
    """A measurement of one checkpoint on one corpus: its version (raise it when the result changes) and budgets."""

    compute: Callable[[Subject], Json]
    version: int
    budgets: tuple[str, ...]


STAGES: dict[str, Stage] = {
    "measure": Stage(elasticity.measure, elasticity.VERSION, ("tokens", "draws", "seed")),
    "depths": Stage(ordering.depths, ordering.VERSION, ("tokens", "permutations", "draws", "seed")),
    "allocation": Stage(allocation.allocation, allocation.VERSION,
                        ("tokens", "live_tokens", "draws", "seed", "tolerance", "policies", "quick")),
}  # fmt: skip


def study(checkpoints: Sequence[str], texts: Sequence[Corpus], settings: Settings, store: Store, tell: Tell) -> Book:
    """Run every stage that is not recorded yet; everything wrong with an input raises `InputError` before any work."""
    opened = [open_checkpoint(name) for name in checkpoints]
    subjects = []
    for checkpoint in opened:
        model = checkpoint.model(device="cpu")
        subjects += [Subject(checkpoint, model, corpus, settings, store, tell) for corpus in texts]
    for subject in subjects:
        require_length(subject.windows, subject.corpus.name)
    found = {c.name: _about(c, settings, store, tell) for c in opened}
    pairs = [Pair(s.checkpoint.name, s.corpus.name, _stages(s)) for s in subjects]
    return Book(pairs, found, {}, {}, asdict(settings))


def _stages(subject: Subject) -> Mapping[str, Json]:
    done = {}
    for name, stage in STAGES.items():
        budgets = {b: getattr(subject.settings, b) for b in stage.budgets}
        parts = {"version": stage.version, **subject.identity, **budgets}
        done[name] = subject.store.get(f"{subject.name}/{name}", parts, lambda compute=stage.compute: compute(subject))
    return done


def _about(checkpoint: Checkpoint, settings: Settings, store: Store, tell: Tell) -> Json:
    """Shape, training and costs of a checkpoint, and accuracy by depth on puzzles of known difficulty."""
    parts = {"version": 1, "weights": checkpoint.digest, "puzzles": PUZZLES[settings.quick], "seed": settings.seed,
             "draws": settings.draws}  # fmt: skip
    return store.get(f"{checkpoint.name}/checkpoint", parts, lambda: _describe(checkpoint, settings, tell))


def _describe(checkpoint: Checkpoint, settings: Settings, tell: Tell) -> Json:
    config, path = checkpoint.config, checkpoint.folder / "manifest.json"
    cost, made = Cost.of(config), read_json(path) if path.is_file() else {}
    trained = (made.get("config") or {}).get("train") or {}
    return {
        "parameters": sum(cost.params.values()),
        "mean_depth": config.mean_depth,
        "max_depth": config.max_depth,
        "vocabulary": config.vocab_size,
        "trained_tokens": made.get("tokens") or trained.get("tokens"),
        "sampler": ((made.get("config") or {}).get("depth") or {}).get("kind"),
        "bound_at_median": cost.bound(max(1.0, config.mean_depth / 2), config.mean_depth, keys=config.context / 2),
        "difficulty": _difficulty(checkpoint, settings, tell),
    }


def _difficulty(checkpoint: Checkpoint, settings: Settings, tell: Tell) -> list[Json]:
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    answers = make_answers(tokenizer, PUZZLES[settings.quick], context=checkpoint.config.context)
    if not answers.labels:
        return []
    depth, done = min(32, checkpoint.config.max_depth), [0]

    def advance(more: int) -> None:
        done[0] += more
        tell(f"{checkpoint.name}: puzzles of known difficulty", done[0] / answers.windows.num_tokens)

    found = trace(checkpoint.model(), answers.windows, max_depth=depth, signals=("kl",), progress=advance)
    return by_difficulty(found, answers, epsilon=EPSILON, draws=settings.draws, seed=settings.seed)


def provenance(store: Store, settings: Settings, book: Book) -> list[tuple[str, str]]:
    """What stands in the report's head and foot."""
    return [
        ("checkpoints", ", ".join(book.checkpoints)),
        ("corpora", ", ".join(dict.fromkeys(p.corpus for p in book.pairs))),
        ("tokens per corpus", f"{settings.tokens:,}" + (" (quick)" if settings.quick else "")),
        ("commit", hardware.commit()),
        ("processor", hardware.processor()),
        ("command", store.command),
        ("records reused", str(len(store.reused))),
        ("bootstrap", f"{settings.draws:,} draws over documents, seed {settings.seed}"),
    ]


def folder_of(out: Path) -> Path:
    """The study's folder, checked before hours of work."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out '{out}' is a file: give a folder")
    return out
