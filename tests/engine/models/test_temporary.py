"""What is kept for a while: bounds by owner and in all, expiry, and who may see it."""

from __future__ import annotations

import pytest
from support.guarded import guarded

from dsearch.engine.models.drafts import Bounds, Temporary
from dsearch.errors import Gone, InvalidRequest

checked = guarded(Temporary, "_entries", free=("size", "__len__"))


BOUNDS = Bounds(count=3, owner_bytes=10, all_bytes=16, expiry_s=60.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> Temporary[str]:
    return Temporary[str]("thing", "make it again", lambda: BOUNDS, clock)


def there(kept: Temporary[str], *ids: str, owner: str = "a") -> list[bool]:
    """List those that are left, without using them."""
    return [id in kept._entries and kept._entries[id].owner == owner for id in ids]


def test_an_item_is_its_owners_alone(kept: Temporary[str]) -> None:
    id = kept.add("one", "a", 4)
    entry = kept.get(id, "a")
    assert (entry.item, entry.owner, entry.size, kept.size, len(kept)) == ("one", "a", 4, 4, 1)
    with pytest.raises(Gone, match=f"thing '{id}' is gone; make it again"):
        kept.get(id, "b")
    assert not kept.drop(id, "b")
    assert there(kept, id) == [True]
    assert kept.drop(id, "a")
    assert not kept.drop(id, "a")


def test_the_least_recently_used_of_an_owner_makes_room_for_one_too_many(kept: Temporary[str]) -> None:
    first, second, third = (kept.add(name, "a", 1) for name in "xyz")
    assert there(kept, first, second, third) == [True] * 3
    kept.get(first, "a")
    fourth = kept.add("w", "a", 1)
    assert there(kept, first, second, third, fourth) == [True, False, True, True]


def test_bytes_of_an_owner_are_bounded(kept: Temporary[str]) -> None:
    first, second = kept.add("x", "a", 4), kept.add("y", "a", 6)  # ten, which may be
    assert there(kept, first, second) == [True, True]
    third = kept.add("z", "a", 5)
    assert there(kept, first, second, third) == [False, False, True]
    assert there(kept, kept.add("full", "a", 10)) == [True]
    with pytest.raises(InvalidRequest, match="a thing of 11 bytes; use at most 10"):
        kept.add("more", "a", 11)
    assert len(kept) == 1


def test_bytes_of_all_owners_are_bounded_and_others_go_first_used_last(kept: Temporary[str]) -> None:
    first, second = kept.add("x", "a", 8), kept.add("y", "b", 8)  # sixteen, which may be
    assert there(kept, first) == there(kept, second, owner="b") == [True]
    kept.get(first, "a")
    third = kept.add("z", "c", 1)
    assert there(kept, first) == there(kept, third, owner="c") == [True]
    assert there(kept, second, owner="b") == [False]


def test_it_expires_after_its_last_use(kept: Temporary[str], clock: Clock) -> None:
    id = kept.add("x", "a", 1)
    clock.now += 59.9
    assert kept.get(id, "a").expires == clock.now + 60
    clock.now += 59.9
    kept.get(id, "a")
    clock.now += 60
    with pytest.raises(Gone):
        kept.get(id, "a")
    other = kept.add("y", "a", 1)
    clock.now += 60
    kept.add("z", "b", 1)
    assert there(kept, other) == [False]


def test_ids_cannot_be_guessed(kept: Temporary[str]) -> None:
    ids = {kept.add("x", str(owner), 1) for owner in range(10)}
    assert len(ids) == 10
    assert {len(id) for id in ids} == {24}
