"""The block pool: which blocks of KV memory are free, held by requests, or cached. Pure bookkeeping, no tensors.

A block is held while at least one request refers to it. A held block may be *published* under a key (`prefix.py`):
other requests with the same key then share it, read-only. When the last holder lets go, a published block stays cached
until its memory is wanted (least recently used first); any other block is free at once. So at all times
free + cached + held == total.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Blocks 0 .. total - 1."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._refs = [0] * total
        self._key: list[bytes | None] = [None] * total
        self._index: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks, least recently used first
        self.version = 0  # grows whenever a request that did not fit might fit now

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Published blocks that nobody refers to: they can be had for the asking."""
        return len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that requests refer to."""
        return self.total - len(self._free) - len(self._idle)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks published under the longest run of `keys` from the first on."""
        found = []
        for key in keys:
            block = self._index.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def has(self, key: bytes) -> bool:
        """Whether a block is published under `key`."""
        return key in self._index

    def take(self, shared: Sequence[int], fresh: int) -> list[int] | None:
        """Refer to the `shared` blocks (just matched) and to `fresh` new ones; returns all in order, or None, having
        changed nothing, if memory does not suffice."""
        waking = sum(1 for block in shared if self._refs[block] == 0)
        if fresh > len(self._free) + len(self._idle) - waking:
            return None
        for block in shared:
            if self._refs[block] == 0:
                del self._idle[block]
            self._refs[block] += 1
        return [*shared, *(self._fresh() for _ in range(fresh))]

    def _fresh(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._unpublish(block)
        self._refs[block] = 1
        return block

    def _unpublish(self, block: int) -> None:
        key, self._key[block] = self._key[block], None
        if key is not None:
            del self._index[key]

    def publish(self, block: int, key: bytes) -> None:
        """Offer a held, completely written block under `key`. If another block already has that key, this one stays
        private."""
        assert self._refs[block] > 0, "only held blocks are published"
        if key not in self._index and self._key[block] is None:
            self._index[key], self._key[block] = block, key
            self.version += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks, once per reference. Later blocks of a sequence are forgotten first."""
        for block in reversed(list(blocks)):
            assert self._refs[block] > 0, "a block was released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._key[block] is None:
                    self._free.append(block)
                else:
                    self._idle[block] = None
        self.version += 1

    def forget(self) -> None:
        """Unpublish everything; cached blocks become free."""
        for block in range(self.total):
            self._unpublish(block)
        self._free.extend(self._idle)
        self._idle.clear()
        self.version += 1

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert that the pool agrees with what `holders` (block lists of running requests) refer to."""
        counted = [0] * self.total
        for blocks in holders:
            assert len(set(blocks)) == len(blocks), "a request refers to a block twice"
            for block in blocks:
                counted[block] += 1
        assert counted == self._refs, "reference counts do not match the holders"
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free) and not free & idle, "a block is free twice, or free and cached"
        assert free | idle == {b for b in range(self.total) if counted[b] == 0}, "unreferenced blocks are lost"
        assert all(self._key[b] is None for b in free), "a free block is published"
        assert all(self._key[b] is not None for b in idle), "a cached block has no key"
        assert self._index == {k: b for b, k in enumerate(self._key) if k is not None}, "index and keys differ"
        assert self.num_free + self.num_cached + self.num_held == self.total
