"""Seeded permutations of 0..size-1 that are computed element by element, in constant memory.

A four-round Feistel network permutes the next power of four; results outside the range are sent through it again
("cycle walking", Black and Rogaway 2002), which keeps it a permutation and takes fewer than four turns on average.
"""

import numpy as np

_ROUNDS = 4
_MASK64 = (1 << 64) - 1


class Permutation:
    """A permutation of `size` elements chosen by `key` (64 bits)."""

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = [mix(key, number) for number in range(_ROUNDS)]

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Elements at `places` (integers in 0..size-1), as int64."""
        values = self._turn(places.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._turn(values[outside])
        return values.astype(np.int64)

    def _turn(self, values: np.ndarray) -> np.ndarray:
        shift, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = values >> shift, values & mask
        for key in self._keys:
            left, right = right, left ^ (_scramble(right ^ np.uint64(key)) & mask)
        return (left << shift) | right


def mix(*parts: int) -> int:
    """One 64-bit number from several integers; a change in any of them changes about half of its bits."""
    state = 0
    for part in parts:
        state = int(_scramble(np.array([(state ^ (part & _MASK64))], dtype=np.uint64))[0])
    return state


def uniform(key: int, numbers: np.ndarray) -> np.ndarray:
    """Float64 in [0, 1) for each integer, independent over numbers and keys."""
    scrambled = _scramble(numbers.astype(np.uint64) ^ np.uint64(mix(key)))
    return (scrambled >> np.uint64(11)).astype(np.float64) / (1 << 53)


def _scramble(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014); arithmetic is modulo 2^64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
