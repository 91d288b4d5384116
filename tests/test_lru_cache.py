"""A cache keeps what was used last: by number, by size, in batches, and each access under its lock."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guarded import guarded

from dsearch.lru_cache import LruCache

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))

KEYS = st.integers(0, 6)
CALLS = st.lists(st.tuples(st.sampled_from(["get", "put", "drop"]), KEYS), max_size=40)


@given(CALLS, st.integers(1, 4))
def test_it_holds_what_was_used_last(calls: list[tuple[str, int]], most: int) -> None:
    cache, expected = LruCache[int, str](most), OrderedDict[int, str]()
    for call, key in calls:
        if call == "get":
            assert cache.get(key) == expected.get(key)
            if key in expected:
                expected.move_to_end(key)
        elif call == "put":
            cache.put(key, f"v{key}")
            expected[key] = f"v{key}"
            expected.move_to_end(key)
            while len(expected) > most:
                expected.popitem(last=False)
        else:
            cache.drop(key)
            expected.pop(key, None)
        assert len(cache) == len(expected)
    assert cache.get_all(range(7)) == dict(expected)


@given(st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=40), st.integers(0, 20))
def test_the_sum_of_sizes_is_bounded(puts: list[tuple[int, int]], most: int) -> None:
    cache = LruCache[int, int](max_bytes=most, size_of=lambda _, value: value)
    for key, value in puts:
        cache.put(key, value)
        assert cache.get(key) == (value if value <= most else None)
        assert cache.bytes == sum(cache.get_all(range(7)).values()) <= most
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def test_a_batch_larger_than_the_bound_stays_until_the_next_one() -> None:
    cache = LruCache[int, int](2)
    cache.put_all({1: 1, 2: 2, 3: 3})
    assert cache.get_all([3, 1, 2, 9]) == {3: 3, 1: 1, 2: 2}
    cache.put(4, 4)
    assert cache.get_all(range(9)) == {2: 2, 4: 4}


@pytest.mark.parametrize("most", [3, None])
def test_keys_that_meet_a_condition_are_dropped(most: int | None) -> None:
    cache = LruCache[int, int](most)
    cache.put_all({1: 1, 2: 2, 3: 3})
    cache.drop_where(lambda key: key != 2)
    assert cache.get_all(range(9)) == {2: 2}
