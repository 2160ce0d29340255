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
from loopwise.store import Store, key_of
from loopwise.study import allocation, efficiency, elasticity, halting, jacobian, judge, ordering, reading
from loopwise.study.book import Book, Pair
from loopwise.study.settings import SECTIONS, Settings
from loopwise.study.subject import Corpus, Subject, Tell
from loopwise.study.whole import sweep, train_arms

Json = dict[str, Any]
Done = Mapping[str, Json]
PUZZLES = {True: 24, False: 64}


class Stage(NamedTuple):
    """A measurement of one checkpoint on one corpus, given the records before it: its section, its version (raise it
    when the result changes), the budgets and the earlier records it depends on."""

    section: str
    compute: Callable[[Subject, Done], Json]
    version: int
    budgets: tuple[str, ...]
    after: tuple[str, ...] = ()


STAGES: dict[str, Stage] = {
    "measure": Stage(
        "elasticity", lambda s, done: elasticity.measure(s), elasticity.VERSION, ("tokens", "draws", "seed")
    ),
    "jacobian": Stage(
        "dynamics", lambda s, done: jacobian.jacobian(s), jacobian.VERSION, ("jacobians", "iterations", "seed")
    ),
    "depths": Stage(
        "depth", lambda s, done: ordering.depths(s), ordering.VERSION, ("tokens", "permutations", "draws", "seed")
    ),
    "allocation": Stage(
        "allocation",
        lambda s, done: allocation.allocation(s),
        allocation.VERSION,
        ("tokens", "live_tokens", "draws", "seed", "tolerance", "policies", "quick"),
    ),
    "halting": Stage(
        "allocation",
        lambda s, done: halting.halting(s),
        halting.VERSION,
        ("tokens", "live_tokens", "draws", "seed", "tolerance", "quick"),
    ),
    "reading": Stage(
        "reading",
        lambda s, done: reading.reading(s, done["allocation"]),
        reading.VERSION,
        ("tokens", "live_tokens", "prompts", "new_tokens", "draws", "seed"),
        ("allocation",),
    ),
    "bounds": Stage(
        "efficiency", lambda s, done: efficiency.bounds(s, done["allocation"]), efficiency.VERSION, (), ("allocation",)
    ),
}


def study(
    checkpoints: Sequence[str],
    texts: Sequence[Corpus],
    settings: Settings,
    store: Store,
    tell: Tell,
    *,
    benchmarks: Path | None = None,
) -> Book:
    """Run every stage that is not recorded yet; everything wrong with an input raises `InputError` before any work."""
    opened = [open_checkpoint(name) for name in checkpoints]
    subjects: list[Subject] = []
    for checkpoint in opened:
        model = checkpoint.model(device="cpu")
        subjects += [Subject(checkpoint, model, corpus, settings, store, tell) for corpus in texts]
    for subject in subjects:
        require_length(subject.windows, subject.corpus.name)
    found = {c.name: _about(c, settings, store, tell) for c in opened}
    done = [_stages(s) for s in subjects]
    missing: dict[str, str] = {}
    for name in sorted(set(SECTIONS) - set(settings.sections)):
        missing[name] = f"This run left the section '{name}' out (--sections)."
    whole = _whole(opened[0], texts, subjects, done, missing, benchmarks)
    if "ceiling" in settings.sections:
        with_judge(subjects, done, missing)
    pairs = [Pair(s.checkpoint.name, s.corpus.name, d) for s, d in zip(subjects, done, strict=True)]
    return Book(pairs, found, whole, missing, asdict(settings))


def _stages(subject: Subject) -> dict[str, Json]:
    done: dict[str, Json] = {}
    for name, stage in STAGES.items():
        if name != "measure" and stage.section not in subject.settings.sections:
            continue
        budgets = {b: getattr(subject.settings, b) for b in stage.budgets}
        parts = {"version": stage.version, **subject.identity, **budgets}
        parts |= {earlier: key_of(done[earlier]) for earlier in stage.after}
        if name == "reading":
            parts["tiers"] = key_of(subject.checkpoint.tiers or {})
        done[name] = subject.store.get(
            f"{subject.name}/{name}", parts, lambda compute=stage.compute: compute(subject, done)
        )
    return done


def _whole(
    first: Checkpoint,
    texts: Sequence[Corpus],
    subjects: Sequence[Subject],
    done: Sequence[Done],
    missing: dict[str, str],
    benchmarks: Path | None,
) -> dict[str, Json]:
    """What belongs to no pair; where an input is absent, `missing` says so in one sentence."""
    settings, store, tell = subjects[0].settings, subjects[0].store, subjects[0].tell
    whole: dict[str, Json] = {}
    if settings.train_tokens and "allocation" in settings.sections:
        whole["joint"] = train_arms(first, texts, settings, store, tell)
    else:
        missing["joint"] = "No small models were trained in this run (--quick, or --train-tokens 0)."
    optional: dict[str, Callable[[], Json]] = {
        "sweep": lambda: sweep(benchmarks),
        "engine": lambda: efficiency.engine(benchmarks),
        "energy": lambda: efficiency.energy(subjects[0], done[0]["allocation"]),
    }
    for name, compute in optional.items():
        if name != "sweep" and "efficiency" not in settings.sections:
            continue
        try:
            whole[name] = compute()
        except InputError as error:
            missing[name] = str(error)
    return whole


def with_judge(subjects: Sequence[Subject], done: Sequence[dict[str, Json]], missing: dict[str, str]) -> None:
    """Add what SmolLM2 says of natural text to the records; it is opened only if something is not recorded yet."""
    opened: list[judge.Judge] = []

    def once(store: Store) -> judge.Judge:
        if not opened:
            opened.append(judge.open_judge(store))
        return opened[0]

    for subject, records in zip(subjects, done, strict=True):
        if subject.corpus.puzzles:
            continue
        read = records.get("reading", {"texts": []})
        parts = {"version": judge.VERSION, **subject.identity, "reading": key_of(read)}
        try:
            records["judged"] = subject.store.get(
                f"{subject.name}/judged", parts,
                lambda s=subject, r=read: judge.judge_texts(once(s.store), r, s.tell),
            )  # fmt: skip
            budget = {"version": judge.VERSION, **subject.identity, "quick": subject.settings.quick,
                      "draws": subject.settings.draws}  # fmt: skip
            records["ceiling"] = subject.store.get(
                f"{subject.name}/ceiling", budget,
                lambda s=subject: judge.ceiling(once(s.store), s, s.settings, s.tell),
            )  # fmt: skip
        except InputError as error:
            missing["judge"] = f"{error}."
            return


def _about(checkpoint: Checkpoint, settings: Settings, store: Store, tell: Tell) -> Json:
    """Shape, training and costs of a checkpoint, and accuracy by depth on puzzles of known difficulty."""
    parts = {"version": 2, "weights": checkpoint.digest, "puzzles": PUZZLES[settings.quick], "seed": settings.seed,
             "draws": settings.draws}  # fmt: skip
    found = store.get(f"{checkpoint.name}/checkpoint", parts, lambda: _describe(checkpoint, settings, tell))
    return found | {"parameters": Cost.of(checkpoint.config).params["total"]}


def _describe(checkpoint: Checkpoint, settings: Settings, tell: Tell) -> Json:
    config, path = checkpoint.config, checkpoint.folder / "manifest.json"
    made = read_json(path) if path.is_file() else {}
    recipe = made.get("config") or {}
    return {
        "mean_depth": config.mean_depth,
        "max_depth": config.max_depth,
        "vocabulary": config.vocab_size,
        "trained_tokens": made.get("tokens") or (recipe.get("train") or {}).get("tokens"),
        "sampler": (recipe.get("depth") or {}).get("kind"),
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
        ("bootstrap", f"{settings.draws:,} draws over documents, seed {settings.seed}"),
        ("permutations", f"{settings.permutations:,} within documents, Holm's correction"),
        ("threshold of convergence", f"KL below {EPSILON:g} nats"),
    ]


def folder_of(out: Path) -> Path:
    """The study's folder, checked before hours of work."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out '{out}' is a file: give a folder")
    return out
