"""Puzzles: answers checked by a solver that reads only the text; no cheap rule scores much above chance."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.data.puzzles import (
    KINDS,
    MAX_DIFFICULTY,
    TOKENS,
    AnswerWeights,
    Puzzle,
    labelled_tokens,
    puzzle_documents,
    puzzle_text,
    puzzles,
)
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer

ASSETS = Path(__file__).parents[3] / "src" / "loopwise" / "assets" / "tiny"


def solve_chain(text: str) -> list[tuple[str, int]]:
    """(answer, hops) of every question, from the text alone."""
    found = []
    for part in text.split("chain:\n")[1:]:
        links, questions = part.split(";")
        points = dict(pair.split() for pair in links.split(","))
        for question in questions.split(","):
            at, hops = question.split()[0], 0
            while points[at] != at:
                at, hops = points[at], hops + 1
            found.append((at, hops))
    return found


def solve_sum(text: str) -> list[tuple[str, int]]:
    lines = re.findall(r"^([\d+]+)=(\d)$", text, flags=re.MULTILINE)
    return [(str(sum(map(int, left.split("+"))) % 10), left.count("+")) for left, _ in lines]


SOLVERS = {"chain": solve_chain, "sum": solve_sum}
options = st.tuples(
    st.integers(0, 50), st.integers(0, 5000), st.integers(1, MAX_DIFFICULTY), st.sampled_from(sorted(KINDS))
)


def answers(puzzle: Puzzle) -> list[tuple[str, int]]:
    return [(puzzle.text[span.start : span.end].strip(), span.difficulty) for span in puzzle.spans]


@settings(max_examples=80, deadline=None)
@given(options)
def test_labels_agree_with_an_independent_solver(option: tuple[int, int, int, str]) -> None:
    seed, index, hardest, kind = option
    puzzle = puzzle_text(seed, index, max_difficulty=hardest, kinds=(kind,))
    assert answers(puzzle) == SOLVERS[kind](puzzle.text)
    assert max(span.difficulty for span in puzzle.spans) <= hardest


@settings(max_examples=40, deadline=None)
@given(options)
def test_a_puzzle_is_a_pure_function_of_its_arguments(option: tuple[int, int, int, str]) -> None:
    seed, index, hardest, kind = option
    first = puzzle_text(seed, index, max_difficulty=hardest, kinds=(kind,))
    assert first == puzzle_text(seed, index, max_difficulty=hardest, kinds=(kind,))
    assert first.text != puzzle_text(seed + 1, index, max_difficulty=hardest, kinds=(kind,)).text


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, MAX_DIFFICULTY))
def test_links_stand_after_those_they_lead_to(seed: int, hardest: int) -> None:
    """And no letter that was answered lies on a later path."""
    text = puzzle_text(seed, 0, max_difficulty=hardest).text.removeprefix("chain:\n")
    links, questions = text.split(";")
    pairs = [pair.split() for pair in links.split(",")]
    place, points = {a: i for i, (a, _) in enumerate(pairs)}, dict(pairs)
    assert all(a == b or place[a] > place[b] for a, b in pairs)
    answered: set[str] = set()
    for question in questions.split(","):
        at = question.split()[0]
        path = {at}
        while points[at] != at:
            at = points[at]
            path.add(at)
        assert not path & answered
        answered.add(question.split()[0])


@pytest.mark.parametrize("hardest", [2, 4, 10])
def test_frequency_gives_no_shortcut(hardest: int) -> None:
    """Guessing the end that occurs most often, first or last among the links scores near the mean of 1 / ends."""
    scores: Counter[str] = Counter()
    asked = chance = 0.0
    for puzzle in puzzles(5, 300, max_difficulty=hardest):
        links = [pair.split() for pair in puzzle.text.removeprefix("chain:\n").split(";")[0].split(",")]
        ends = [a for a, b in links if a == b]
        seen = Counter(b for _, b in links if b in ends)
        for answer, _ in answers(puzzle):
            asked, chance = asked + 1, chance + 1 / len(ends)
            scores["first"] += answer == ends[0]
            scores["last"] += answer == ends[-1]
            scores["most"] += answer == seen.most_common(1)[0][0]
    for rule, score in scores.items():
        assert score / asked < chance / asked + 0.16, rule


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_answers_are_uniform_over_symbols(kind: str) -> None:
    counts = Counter(answer for puzzle in puzzles(3, 1500, kinds=(kind,)) for answer, _ in answers(puzzle))
    expected = sum(counts.values()) / (10 if kind == "sum" else 26)
    assert len(counts) == (10 if kind == "sum" else 26)
    assert max(counts.values()) < 1.3 * expected and min(counts.values()) > 0.7 * expected


def test_every_difficulty_up_to_the_limit_occurs() -> None:
    found = Counter(span.difficulty for puzzle in puzzles(0, 200, max_difficulty=10) for span in puzzle.spans)
    assert set(found) == set(range(1, 11)) and min(found.values()) >= 20


def test_source_names() -> None:
    assert list(documents(["puzzles:2-3:5:7"])) == list(puzzle_documents("puzzles:2-3:5:7"))
    assert next(puzzle_documents("puzzles:2-3:5:7")) == puzzle_text(7, 0, max_difficulty=2).text
    assert len(list(puzzle_documents("puzzles"))) == 400


@pytest.mark.parametrize(
    "name",
    ["puzzles:3", "puzzles:0-2", "puzzles:1-99", "puzzles:1-2:0", "puzzles:1-2:3:4:sum:6", "puzzles:a-b"],
)
def test_bad_source_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="LOW-HIGH"):
        list(puzzle_documents(name))


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'chain'"):
        puzzle_text(0, 0, kinds=("chian",))
    with pytest.raises(InputError, match="max_difficulty is 0"):
        puzzle_text(0, 0, max_difficulty=0)


class ByteTokenizer:
    """One token per byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


def test_labelled_tokens_point_at_the_answers() -> None:
    found = list(puzzles(1, 3, max_difficulty=4))
    labels = labelled_tokens(ByteTokenizer(), found)
    assert len(labels) == sum(len(puzzle.spans) for puzzle in found)
    marked = [(found[label.puzzle].text[label.token], label.difficulty) for label in labels]
    assert marked == [pair for puzzle in found for pair in answers(puzzle)]


class LetterTokenizer(ByteTokenizer):
    """Words and signs with the space before them, as the shipped tokenizer cuts puzzles; ids by first occurrence."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"<end>": 0}

    def encode(self, text: str) -> list[int]:
        return [self.known.setdefault(piece, len(self.known)) for piece in re.findall(r" ?\w+|\n|.", text)]

    def token_bytes(self, token: int) -> bytes:
        return list(self.known)[token].encode()


def test_answers_outweigh_the_rest_of_a_puzzle_and_other_text_weighs_one() -> None:
    tokenizer = LetterTokenizer()
    weigh = AnswerWeights(tokenizer, end=0, answer=4.0, filler=0.25)
    found = [*puzzles(0, 3, max_difficulty=6), *puzzles(0, 2, max_difficulty=1)]
    other = tokenizer.encode("a; b c, d")
    rows = [[*other, 0, *tokenizer.encode(puzzle.text), 0, *other] for puzzle in found]
    longest = max(map(len, rows))
    weights = weigh(torch.tensor([row + [0] * (longest - len(row)) for row in rows]))
    for number, (row, puzzle) in enumerate(zip(rows, found, strict=True)):
        start, end = len(other) + 1, len(row) - len(other) - 1
        labels = [label.token for label in labelled_tokens(tokenizer, [puzzle])]
        assert [i - start for i in range(start, end) if weights[number, i] == 4.0] == labels
        assert set(weights[number, start:end].tolist()) == {0.25, 4.0}
        assert weights[number, :start].eq(1).all() and weights[number, end:].eq(1).all()


def test_with_the_shipped_tokenizer_a_puzzle_fills_a_window() -> None:
    if not (ASSETS / "tokenizer.json").exists():
        pytest.skip("the embedded checkpoint is not in this tree")
    tokenizer = Tokenizer.load(ASSETS)
    for hardest in (1, 2, 4, 10):
        for puzzle in puzzles(2, 5, max_difficulty=hardest):
            assert len(tokenizer.encode(puzzle.text)) + 1 == TOKENS
