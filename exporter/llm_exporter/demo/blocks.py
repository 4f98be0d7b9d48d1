"""The KV cache of one simulated server: blocks, prefix sharing by chained block keys, LRU eviction.

A key stands for "the tokens of this block and all before it", so equal keys mean an equal prefix. Blocks without a
key (unique text, output) are only counted. Cached blocks that nobody references count as free, as both engines count
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """All blocks of one server. Invariant: 0 ≤ in_use ≤ in_use + cached ≤ capacity.

    Attributes:
        capacity: blocks.
        in_use: blocks that requests hold.
        cached: blocks that nobody holds, whose content can still be hit.
        evicted: blocks whose content was dropped to make room, since the start.
    """

    __slots__ = ("_idle", "_references", "cached", "capacity", "evicted", "in_use")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.in_use = 0
        self.cached = 0
        self.evicted = 0
        self._references: dict[int, int] = {}  # key → holders
        self._idle: OrderedDict[int, int] = OrderedDict()  # key → blocks, oldest first; >1 for the unshared tail of one request

    @property
    def free(self) -> int:
        """Blocks that can be had, cached content sacrificed."""
        return self.capacity - self.in_use

    def match(self, keys: Sequence[int]) -> int:
        """Leading blocks of `keys` that are in the cache."""
        references, idle = self._references, self._idle
        for position, key in enumerate(keys):
            if key not in references and key not in idle:
                return position
        return len(keys)

    def idle_among(self, keys: Sequence[int]) -> int:
        """How many of these cached blocks nobody holds: taking them lowers `free`."""
        references = self._references
        return sum(1 for key in keys if key not in references)

    def hold(self, keys: Sequence[int]) -> None:
        """Reference cached blocks; every key must be in the cache (see `match`)."""
        references, idle = self._references, self._idle
        for key in keys:
            if key in references:
                references[key] += 1
            else:
                del idle[key]
                references[key] = 1
                self.cached -= 1
                self.in_use += 1

    def take(self, blocks: int) -> bool:
        """Take fresh blocks, evicting the least recently used content if need be.

        Returns: False, and nothing is taken, when there are too few.
        """
        if blocks > self.capacity - self.in_use:
            return False
        self.in_use += blocks
        excess = self.in_use + self.cached - self.capacity
        if excess > 0:
            self._evict(excess)
        return True

    def _evict(self, blocks: int) -> None:
        idle = self._idle
        self.cached -= blocks
        self.evicted += blocks
        while blocks:
            key, count = next(iter(idle.items()))
            if count > blocks:
                idle[key] = count - blocks
                return
            del idle[key]
            blocks -= count

    def publish(self, keys: Sequence[int], limit: int) -> list[int]:
        """Give keys to at most `limit` held blocks that now hold computed tokens.

        Returns: the keys that were taken; a key that is cached already stays with its older block, and ours remains
            without one.
        """
        references, idle = self._references, self._idle
        taken: list[int] = []
        for key in keys:
            if len(taken) >= limit:
                break
            if key not in references and key not in idle:
                references[key] = 1
                taken.append(key)
        return taken

    def release(self, keys: Sequence[int], plain: int, tail_key: int | None) -> None:
        """Give back held blocks: keyed ones stay cached, and so do `plain` ones under `tail_key`.

        The last block of a prefix becomes the oldest, so that a prefix is evicted from its end.
        """
        if plain:
            self.in_use -= plain
            if tail_key is not None:
                self._idle[tail_key] = plain
                self.cached += plain
        references, idle = self._references, self._idle
        for key in reversed(keys):
            holders = references[key] - 1
            if holders:
                references[key] = holders
            else:
                del references[key]
                idle[key] = 1
                self.in_use -= 1
                self.cached += 1

    def clear_idle(self) -> None:
        """Forget all cached content that nobody holds (flush)."""
        self._idle.clear()
        self.cached = 0
