"""Depth-hungry text: seeded puzzles whose answers need a known number of sequential steps, none of them written out.

| kind | text | difficulty of an answer |
|---|---|---|
| `chain` | 41 pairs of letters: links, `;`, questions | links to follow from the asked letter to its end |
| `sum` | lines such as `3+5+9=7`: the last digit of the sum | additions |

In `chain` the link `q z` says that q points to z, and an end points to itself; the question `q b` says that the end
which q leads to is b.

A link stands after the link that it leads to, so every position can look up the letter before it with one and the same
lookup, and each pass of a one-block core carries ends one link further. Nothing on the way is written out: deeper
questions are asked first, so no letter answered before lies on a later path; guessing an end scores about 1 / ends.
Every puzzle is a pure function of (seed, index, options).

With the shipped tokenizer a `chain` puzzle and its end-of-document token are exactly `TOKENS` tokens, so windows of
that size cut from the stream are whole puzzles; `sum` puzzles are a little shorter.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.config import InputError, nearest

TOKENS = 128
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MAX_DIFFICULTY = 12
HELD_OUT_SEED = 1_000_003  # training sets are written with small seeds
_HEADING = "chain:\n"
_PAIRS = 41  # pairs of a chain puzzle: (TOKENS - 4 for the heading - 1 for the end) / 3


class Span(NamedTuple):
    """One answer: `text[start:end]`, its kind and the sequential steps it takes."""

    start: int
    end: int
    kind: str
    difficulty: int


class Puzzle(NamedTuple):
    """A document and its labelled answers."""

    text: str
    spans: tuple[Span, ...]


class Label(NamedTuple):
    """Token `token` of puzzle `puzzle` is an answer of `kind` and `difficulty` (predicted at token - 1)."""

    puzzle: int
    token: int
    kind: str
    difficulty: int


@runtime_checkable
class Encodes(Protocol):
    """What `labelled_tokens` needs of a tokenizer (`data.tokenizer.Tokenizer`)."""

    def encode(self, text: str) -> Sequence[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


def puzzle_text(seed: int, index: int, *, max_difficulty: int = 8, kinds: Sequence[str] = ("chain",)) -> Puzzle:
    """Puzzle number `index` of a stream. Its hardest answer takes at most `max_difficulty` steps."""
    if not 1 <= max_difficulty <= MAX_DIFFICULTY:
        raise InputError(f"max_difficulty is {max_difficulty}: use 1 to {MAX_DIFFICULTY}")
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"puzzle kind '{kind}' is unknown: {nearest(kind, KINDS)}")
    source = random.Random(f"loopwise.puzzle/{seed}/{index}/{max_difficulty}/{','.join(kinds)}")
    kind = source.choice(list(kinds))
    text, spans = "", []
    for piece, difficulty in KINDS[kind](source, max_difficulty):
        if difficulty:
            spans.append(Span(len(text), len(text) + len(piece), kind, difficulty))
        text += piece
    return Puzzle(text, tuple(spans))


def puzzles(seed: int, count: int, *, max_difficulty: int = 8, kinds: Sequence[str] = ("chain",)) -> Iterator[Puzzle]:
    """Puzzles 0 to count - 1 of a stream."""
    for index in range(count):
        yield puzzle_text(seed, index, max_difficulty=max_difficulty, kinds=kinds)


def labelled_tokens(tokenizer: Encodes, found: Sequence[Puzzle]) -> list[Label]:
    """Where the answers are after tokenization: the last token of each answer's text (the one that decides it)."""
    labels = []
    for number, puzzle in enumerate(found):
        ends = {len(puzzle.text[: span.end].encode()): span for span in puzzle.spans}
        place = 0
        for index, token in enumerate(tokenizer.encode(puzzle.text)):
            place += len(tokenizer.token_bytes(token))
            if place in ends:
                labels.append(Label(number, index, ends[place].kind, ends[place].difficulty))
    return labels


def puzzle_documents(name: str) -> Iterator[str]:
    """Texts of `puzzles[:LOW-HIGH[:COUNT[:SEED[:KIND]]]]`: document i has max_difficulty LOW + i mod (HIGH - LOW + 1).

    Without options: 400 held-out chain puzzles of 4 to 10 hops, of a seed that no recipe trains on.
    """
    given = name.split(":")[1:]
    defaults = ("4-10", "400", str(HELD_OUT_SEED), "chain")
    try:
        span, count, seed, kind = (*given, *defaults[len(given) :])
        low, high = (int(side) for side in span.split("-"))
        number, start = int(count), int(seed)
        if not 1 <= low <= high <= MAX_DIFFICULTY or number < 1:
            raise ValueError
    except ValueError:
        raise InputError(
            f"text '{name}' is no puzzle source: use puzzles[:LOW-HIGH[:COUNT[:SEED[:KIND]]]], difficulties 1 to "
            f"{MAX_DIFFICULTY}, for example puzzles:1-8:1000:0"
        ) from None
    for index in range(number):
        yield puzzle_text(start, index, max_difficulty=low + index % (high - low + 1), kinds=(kind,)).text


class AnswerWeights:
    """Loss weights of tokens: `answer` for the answers of chain puzzles, `filler` for their other tokens, 1 elsewhere.

    Works on token ids, so that any window of a mixture can be weighed: a puzzle begins with its heading and ends with
    the end of the document; after its `;` every third token from the second on is an answer.
    """

    def __init__(self, tokenizer: Encodes, *, end: int, answer: float, filler: float) -> None:
        self.heading, self.end = list(tokenizer.encode(_HEADING)), end
        self.semicolon = tokenizer.encode(f"{_HEADING} a a; b a\n")[len(self.heading) + 2]
        self.answer, self.filler = answer, filler

    def __call__(self, windows: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time"]:
        """Weight of each token as a target."""
        place = torch.arange(windows.shape[1], device=windows.device).expand_as(windows)
        size = len(self.heading)
        headed = torch.zeros_like(windows, dtype=torch.bool)
        found = torch.stack([windows[:, i : windows.shape[1] - size + 1 + i] == h for i, h in enumerate(self.heading)])
        headed[:, : found.shape[-1]] = found.all(0)
        begun, over, asked = (
            torch.where(here, place, -1).cummax(1).values
            for here in (headed, windows == self.end, windows == self.semicolon)
        )
        inside = begun > over
        answers = inside & (asked > begun) & (place > asked) & ((place - asked) % 3 == 2)
        weights = torch.where(inside, self.filler, 1.0)
        return torch.where(answers, self.answer, weights)


class _Forest(NamedTuple):
    """`parent` of each letter (ends are their own), and `end` and `depth` of each."""

    parent: dict[str, str]
    end: dict[str, str]
    depth: dict[str, int]


def _chain(source: random.Random, hardest: int) -> Iterator[tuple[str, int]]:
    """Pieces of text and the difficulty of those that are answers (0 for the rest)."""
    ends = source.choice((3, 5, 7, 9) if hardest == 2 else (3, 5, 7) if hardest <= 4 else (3, 5))
    sizes = [((_PAIRS + ends) // 2, ends)]
    if hardest == 1:  # four small ones, so that the first hop is found over short distances
        sizes = [(6, 3), (6, 3), (6, 3), (7, 4)]
    for letters, ends in sizes:
        yield from _links_and_questions(source, _forest(source, hardest, ends, letters))


def _links_and_questions(source: random.Random, forest: _Forest) -> Iterator[tuple[str, int]]:
    links = _parents_first(source, forest.parent)
    yield _HEADING, 0
    for place, letter in enumerate(links):
        yield f" {letter} {forest.parent[letter]}" + (";" if place == len(links) - 1 else ","), 0
    asked = [letter for letter in forest.parent if forest.depth[letter]]
    source.shuffle(asked)
    asked.sort(key=lambda letter: -forest.depth[letter])
    for place, letter in enumerate(asked):
        yield f" {letter}", 0
        yield f" {forest.end[letter]}", forest.depth[letter]
        yield ("\n" if place == len(asked) - 1 else ","), 0


def _forest(source: random.Random, hardest: int, ends: int, letters: int) -> _Forest:
    """Random paths into `ends` ends, none longer than `hardest`; the rest hang from random letters."""
    names = source.sample(LETTERS, letters)
    tips = names[:ends]
    parent, end, depth = {x: x for x in tips}, {x: x for x in tips}, dict.fromkeys(tips, 0)
    for letter in names[ends:]:
        growing = [place for place, tip in enumerate(tips) if depth[tip] < hardest]
        if growing:
            place = source.choice(growing)
            above, tips[place] = tips[place], letter
        else:
            above = source.choice([x for x in parent if depth[x] < hardest])
        parent[letter], end[letter], depth[letter] = above, end[above], depth[above] + 1
    return _Forest(parent, end, depth)


def _parents_first(source: random.Random, parent: dict[str, str]) -> list[str]:
    """A random order in which every letter stands after its parent."""
    waiting = dict.fromkeys(parent, 0)
    for letter, above in parent.items():
        waiting[above] += letter != above
    ready = [letter for letter in parent if not waiting[letter]]
    order = []
    while ready:
        letter = ready.pop(source.randrange(len(ready)))
        order.append(letter)
        above = parent[letter]
        if above != letter:
            waiting[above] -= 1
            if not waiting[above]:
                ready.append(above)
    return order[::-1]


def _sum(source: random.Random, hardest: int) -> Iterator[tuple[str, int]]:
    """Lines of two digits and more, until no further line fits into `TOKENS` tokens."""
    yield "sum:\n", 0
    room = TOKENS - 5  # heading of 4 tokens, end of document; a line of n digits takes 2n + 2
    while room >= 6:
        longest = min(hardest + 1, room // 2 - 1)
        digits = [source.randrange(10) for _ in range(source.randint(2, longest))]
        room -= 2 * len(digits) + 2
        yield "+".join(map(str, digits)) + "=", 0
        yield str(sum(digits) % 10), len(digits) - 1
        yield "\n", 0


KINDS: dict[str, Callable[[random.Random, int], Iterator[tuple[str, int]]]] = {"chain": _chain, "sum": _sum}
