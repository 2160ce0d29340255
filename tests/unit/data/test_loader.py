"""Loaders: a batch is a pure function of (seed, step), equal for every number of processes; each window comes once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.data.loader import LinearWeights, MixtureLoader, PackedLoader, PiecewiseWeights, constant, find_sets
from loopwise.data.permutation import Permutation, mix, uniform


class Counting:
    """The stream base, base + 1, base + 2 ..., so that a token tells its place."""

    def __init__(self, length: int, base: int = 0) -> None:
        self.length, self.base = length, base

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, length: int) -> np.ndarray:
        return self.base + np.arange(start, start + length, dtype=np.int64)


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permutation_is_one(size: int, key: int) -> None:
    assert sorted(Permutation(size, key)(np.arange(size)).tolist()) == list(range(size))


@given(st.integers(1, 2**40), st.integers(0, 2**63), st.data())
def test_permutation_of_any_size_stays_inside(size: int, key: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=9).map(sorted)))
    found = Permutation(size, key)(places)
    assert len(set(found.tolist())) == len(places)
    assert 0 <= found.min() <= found.max() < size


def test_permutations_look_random() -> None:
    places = np.arange(4096)
    a, b = (Permutation(4096, mix(7, epoch))(places) for epoch in range(2))
    assert abs(np.corrcoef(places, a)[0, 1]) < 0.05
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    assert (a == b).sum() < 20
    assert abs(np.abs(np.diff(a)).mean() / (4096 / 3) - 1) < 0.1


def test_uniform_and_mix() -> None:
    draws = uniform(3, np.arange(20_000))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.01
    assert len({mix(a, b) for a in range(40) for b in range(40)}) == 1600
    assert mix(1, 2) != mix(2, 1)
    assert mix(-1) == mix(2**64 - 1)


@given(st.integers(10, 400), st.integers(1, 9), st.integers(1, 8), st.integers(0, 5))
def test_every_window_once_per_epoch(length: int, context: int, rows: int, seed: int) -> None:
    loader = PackedLoader(Counting(length), context=context, batch_size=rows, seed=seed)
    windows = (length - 1) // context
    batches = torch.cat([loader.batch(step) for step in range(-(-2 * windows // rows))])
    assert batches.dtype == torch.long
    assert batches.shape[1] == context + 1
    starts = batches[:, 0].tolist()
    for epoch in (starts[:windows], starts[windows : 2 * windows]):
        assert sorted(epoch) == [context * w for w in range(windows)]
    assert torch.equal(batches, batches[:, :1] + torch.arange(context + 1))


@given(st.integers(0, 3), st.integers(0, 10_000), st.sampled_from([1, 2, 3, 6]))
def test_batches_do_not_depend_on_processes_or_history(seed: int, step: int, world: int) -> None:
    def packed(rank: int = 0, size: int = 1) -> PackedLoader:
        return PackedLoader(Counting(500), context=4, batch_size=6, seed=seed, rank=rank, world_size=size)

    def mixed(rank: int = 0, size: int = 1) -> MixtureLoader:
        sources = {"a": Counting(300), "b": Counting(99, base=1000)}
        weights = LinearWeights(start=(3.0, 1.0), end=(1.0, 1.0), steps=5000)
        return MixtureLoader(sources, weights, context=4, batch_size=6, seed=seed, rank=rank, world_size=size)

    for make in (packed, mixed):
        used = make()
        for earlier in (step + 5000, 0):
            used.batch(earlier)
        whole = used.batch(step)
        assert torch.equal(whole, make().batch(step))
        for rank in range(world):
            assert torch.equal(make(rank, world).batch(step), whole[rank::world])


def test_seeds_and_epochs_differ() -> None:
    def starts(seed: int, step: int) -> list[int]:
        return PackedLoader(Counting(401), context=4, batch_size=100, seed=seed).batch(step)[:, 0].tolist()

    assert starts(0, 0) != starts(1, 0)
    assert starts(0, 0) != starts(0, 1)


def test_epoch_counts_passes() -> None:
    loader = PackedLoader(Counting(41), context=4, batch_size=5, seed=0)
    assert loader.num_windows == 10
    assert loader.epoch(3) == 1.5


def test_mixture_shares_and_coverage() -> None:
    sources = {"a": Counting(4 * 50 + 1), "b": Counting(4 * 30 + 1, base=1000), "never": Counting(9, base=5000)}
    loader = MixtureLoader(sources, constant(3.0, 1.0, 0.0), context=4, batch_size=10, seed=1)
    used: Counter[str] = Counter()
    starts: dict[str, list[int]] = {"a": [], "b": []}
    for step in range(40):
        names, rows = loader.sources(step), loader.batch(step)
        used.update(names)
        assert 7 <= names.count("a") <= 8
        for name in starts:
            starts[name] += [int(row[0]) % 1000 for row, of in zip(rows, names, strict=True) if of == name]
    assert used["never"] == 0
    assert abs(used["a"] - 300) <= 40
    assert loader.epochs(40) == {"a": used["a"] / 50, "b": used["b"] / 30, "never": 0.0}
    for name, windows in (("a", 50), ("b", 30)):
        visits, passes = Counter(starts[name]), used[name] // windows
        assert {visits[4 * w] for w in range(windows)} <= {passes, passes + 1}
        assert len(visits) == windows


def test_mixture_share_is_exact_on_average() -> None:
    sources = {"a": Counting(50), "b": Counting(50), "c": Counting(50)}
    loader = MixtureLoader(sources, constant(0.61, 0.29, 0.1), context=4, batch_size=3, seed=0)
    counts = loader._rows_of(0).sum(0) / (4096 * 3)
    assert counts == pytest.approx([0.61, 0.29, 0.1], abs=0.01)


def test_curriculum_moves_the_shares() -> None:
    weights = LinearWeights(start=(1.0, 0.0), end=(1.0, 3.0), steps=100)
    assert weights(np.array([0, 50, 100, 900])) == pytest.approx(
        np.array([[1, 0], [0.625, 0.375], [0.25, 0.75], [0.25, 0.75]])
    )
    loader = MixtureLoader({"a": Counting(50), "b": Counting(50)}, weights, context=4, batch_size=8, seed=0)
    assert [loader.sources(step).count("b") for step in (0, 100, 5000)] == [0, 6, 6]


def test_text_shorter_than_the_context() -> None:
    PackedLoader(Counting(5), context=4, batch_size=1, seed=0)
    with pytest.raises(
        InputError, match=r"'text' holds 4 tokens, fewer than one window of 5 \(context \+ 1\): give more"
    ):
        PackedLoader(Counting(4), context=4, batch_size=1, seed=0)
    with pytest.raises(InputError, match="'b' holds 0 tokens"):
        MixtureLoader({"a": Counting(9), "b": Counting(0)}, constant(1, 1), context=4, batch_size=1, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 0}, "context is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 3, "world_size": 2}, "batch_size is 3: it must divide"),
        ({"rank": 1}, "rank is 1"),
        ({"world_size": 0}, "world_size is 0"),
    ],
)
def test_bad_settings(changes: dict[str, int], message: str) -> None:
    settings = {"context": 4, "batch_size": 2, "seed": 0} | changes
    with pytest.raises(InputError, match=message):
        PackedLoader(Counting(50), **settings)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0), (float("nan"), 1.0), (0.0, 0.0)])
def test_bad_weights(weights: tuple[float, ...]) -> None:
    def rows(steps: np.ndarray) -> np.ndarray:
        return np.tile(np.array(weights), (len(steps), 1))

    loader = MixtureLoader({"a": Counting(50), "b": Counting(50)}, rows, context=4, batch_size=2, seed=0)
    with pytest.raises(InputError, match="mixture weights"):
        loader.batch(0)


def test_mixture_needs_sources() -> None:
    with pytest.raises(InputError, match="has no sources"):
        MixtureLoader({}, constant(), context=4, batch_size=2, seed=0)


def test_find_sets(tmp_path: Path) -> None:
    for name in ("b", "a", "b/nested"):
        (tmp_path / name / "train").mkdir(parents=True)
        (tmp_path / name / "train" / "index.json").write_text("{}")
    assert find_sets(tmp_path) == {"a": tmp_path / "a", "b": tmp_path / "b"}
    assert find_sets(tmp_path / "a") == {"a": tmp_path / "a"}
    for folder in (tmp_path / "a" / "train", tmp_path / "none"):
        with pytest.raises(InputError, match="holds no prepared text"):
            find_sets(folder)


def test_piecewise_weights_pass_through_their_knots() -> None:
    weights = PiecewiseWeights(knots=(((0, 1.0),), ((0, 0.0), (10, 0.0), (11, 2.0), (21, 0.0))))
    assert weights(np.array([0, 10, 11, 16, 21, 99])).tolist() == [[1, 0], [1, 0], [1, 2], [1, 1], [1, 0], [1, 0]]
