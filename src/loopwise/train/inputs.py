"""Prepared text of a run: training and held-out batches, the tokenizer, and a fingerprint of all of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from loopwise.config import InputError, nearest
from loopwise.data.loader import LinearWeights, MixtureLoader, PackedLoader, PiecewiseWeights, Weights, find_sets
from loopwise.data.puzzles import AnswerWeights
from loopwise.data.shards import TokenShards
from loopwise.data.tokenizer import Tokenizer
from loopwise.records import sha256
from loopwise.train.config import Recipe, Source
from loopwise.train.validate import HeldOut
from loopwise.train.world import World

EVAL_ROWS = 16


class Inputs(NamedTuple):
    """What `open_inputs` found. `fingerprint` has `data_sha256`, `tokenizer_sha256` and one digest per set."""

    train: MixtureLoader
    held_out: dict[str, HeldOut]
    tokenizer: Path
    fingerprint: dict[str, str]
    weigh: AnswerWeights | None


def open_inputs(folder: Path, recipe: Recipe, world: World) -> Inputs:
    """Open what `loopwise prepare` wrote: `folder` itself, or its sub-folders, one per source of the recipe.

    Every shard's hash is checked (by the first process). Missing or extra sets, different tokenizers, a tokenizer that
    does not fit the model and text shorter than a window raise `InputError`.
    """
    sets = find_sets(folder)
    sources = _sources(sets, recipe)
    sets = {source.name: sets[source.name] for source in sources}
    path = next(iter(sets.values())) / "tokenizer.json"
    tokenizer = Tokenizer.load(path)
    tokenizer.check_vocab(recipe.model.vocab_size)
    train = {
        n: TokenShards(f / "train", tokenizer_sha256=tokenizer.digest, verify=world.first) for n, f in sets.items()
    }
    seed, context = recipe.train.seed, recipe.train.context
    loader = MixtureLoader(
        train,
        _weights(sources, train, recipe.data.mix_steps),
        context=context,
        batch_size=recipe.train.batch_size,
        seed=seed,
        rank=world.rank,
        world_size=world.size,
    )
    held_out = {}
    for source in sources:
        tokens = TokenShards(sets[source.name] / "valid", tokenizer_sha256=tokenizer.digest, verify=world.first)
        if len(tokens) <= context:
            raise InputError(
                f"data '{sets[source.name]}' holds out {len(tokens)} tokens, fewer than a window of "
                f"{context + 1}: prepare it with a larger --holdout or more documents"
            )
        rows = min(EVAL_ROWS, recipe.train.batch_size)
        batches = PackedLoader(tokens, context=context, batch_size=rows, seed=0)  # seed 0: the same for every run
        held_out[source.name] = HeldOut(batches, _final(source))
    weigh = None
    if (recipe.data.answer_weight, recipe.data.filler_weight) != (1.0, 1.0) and tokenizer.eos_id is not None:
        weigh = AnswerWeights(
            tokenizer, end=tokenizer.eos_id, answer=recipe.data.answer_weight, filler=recipe.data.filler_weight
        )
    # A folder that holds one set may be renamed: only sets of a mixture are known by their names.
    digests = {f"data.{n if len(sets) > 1 else 'text'}": shards.index.digest for n, shards in train.items()}
    whole = sha256("\n".join(f"{name} {digest}" for name, digest in digests.items()).encode())
    digests = {"data_sha256": whole, "tokenizer_sha256": tokenizer.digest, **digests}
    return Inputs(loader, held_out, path, digests, weigh)


def _sources(sets: Mapping[str, Path], recipe: Recipe) -> tuple[Source, ...]:
    """The recipe's sources if it has several; a single set, or a recipe without sources, is taken as it is."""
    wanted = recipe.data.sources
    if not wanted or (len(sets) == 1 and len(wanted) > 1):
        return tuple(Source(name=name, text="") for name in sets)
    if len(sets) == 1:
        return tuple(Source(name=name, text=source.text) for name, source in zip(sets, wanted, strict=True))
    names = [source.name for source in wanted]
    for name in names:
        if name not in sets:
            raise InputError(f"data has no set '{name}', which recipe '{recipe.name}' mixes: {nearest(name, sets)}")
    return wanted


def _weights(sources: tuple[Source, ...], train: Mapping[str, TokenShards], steps: int) -> Weights:
    if all(not source.text for source in sources):  # no shares given: in proportion to size
        shares = tuple(float(len(train[source.name])) for source in sources)
        return LinearWeights(start=shares, end=shares, steps=1)
    if any(source.shares for source in sources):
        return PiecewiseWeights(knots=tuple(source.shares or ((0, source.weight),) for source in sources))
    return LinearWeights(
        start=tuple(source.weight for source in sources), end=tuple(_final(source) for source in sources), steps=steps
    )


def _final(source: Source) -> float:
    if source.shares:
        return source.shares[-1][1]
    return source.weight if source.final_weight is None else source.final_weight
