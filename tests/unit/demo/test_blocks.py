"""The KV cache of the simulation: never more blocks than there are, shared prefixes hit, the least recently used goes first."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_exporter.demo.blocks import BlockPool
from llm_exporter.demo.text import block_keys, tokens_of


def fill(pool: BlockPool, keys: list[int], tail: int) -> None:
    """A request that computes all its blocks and ends: `keys` are cached, `tail` blocks lie under one unique key."""
    hits = pool.match(keys)
    pool.hold(keys[:hits])
    assert pool.take(len(keys) - hits)
    taken = [*keys[:hits], *pool.publish(keys[hits:], len(keys) - hits)]
    pool.release(taken, len(keys) - len(taken), tail)


def test_a_prefix_that_was_computed_is_hit_by_the_next_request() -> None:
    pool = BlockPool(100)
    fill(pool, [1, 2, 3, 4], -1)
    assert pool.match([1, 2, 3, 9]) == 3
    assert pool.match([9, 2, 3]) == 0
    assert (pool.in_use, pool.cached, pool.free) == (0, 4, 100)


def test_the_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    pool = BlockPool(6)
    fill(pool, [1, 2, 3], -1)
    fill(pool, [11, 12, 13], -2)
    fill(pool, [1, 2, 3], -3)  # used again: the other one is older now
    assert pool.take(1)
    assert pool.match([1, 2, 3]) == 3
    assert pool.match([11, 12, 13]) == 2
    assert pool.evicted == 1


def test_more_than_there_is_cannot_be_taken_and_nothing_is_lost() -> None:
    pool = BlockPool(4)
    fill(pool, [1, 2], -1)
    assert not pool.take(5)
    assert (pool.in_use, pool.cached) == (0, 2)


def test_two_requests_share_the_blocks_of_one_prefix() -> None:
    pool = BlockPool(10)
    fill(pool, [1, 2], -1)
    pool.hold([1, 2])
    pool.hold([1, 2])
    assert pool.in_use == 2
    pool.release([1, 2], 0, None)
    assert pool.in_use == 2
    pool.release([1, 2], 0, None)
    assert (pool.in_use, pool.cached) == (0, 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(5, 40))
def test_blocks_are_conserved_whatever_requests_do(seed: int, capacity: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(capacity)
    held: list[tuple[list[int], int]] = []
    for turn in range(120):
        if held and rng.random() < 0.5:
            taken, plain = held.pop(rng.randrange(len(held)))
            pool.release(taken, plain, -turn if rng.random() < 0.7 else None)
        else:
            stream = rng.randrange(4)
            keys = [stream * 100 + index for index in range(rng.randrange(1, 8))]
            hits = pool.match(keys)
            need = len(keys) - hits + rng.randrange(3)
            if need + pool.idle_among(keys[:hits]) <= pool.free:
                pool.hold(keys[:hits])
                assert pool.take(need)
                mine = pool.publish(keys[hits:], need)
                held.append((keys[:hits] + mine, need - len(mine)))
        assert 0 <= pool.in_use <= pool.in_use + pool.cached <= capacity
        distinct = {key for taken, _ in held for key in taken}
        assert pool.in_use == len(distinct) + sum(plain for _, plain in held)


def test_block_keys_are_equal_as_far_as_the_texts_are_and_never_again_after_a_difference() -> None:
    common = "the same system prompt for everybody " * 20
    first = block_keys(tokens_of(common + "one question " * 20), 16)
    second = block_keys(tokens_of(common + "two answers " * 20), 16)
    shared = len(tokens_of(common)) // 16
    assert first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second[shared:])
