"""What an ingress knows of the live releases: asked for now and then, kept while nobody answers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from support.guarded import guarded

from dsearch.cluster import collection
from dsearch.cluster.collection import Releases
from dsearch.cluster.coordinator import LiveRelease
from dsearch.errors import CorruptData

checked = guarded(Releases, "_by_name", "_unread", "_looked")


FIRST = LiveRelease("food", "first", "digest", 1, [["a"]], 1)


class Coordinator:
    """Answers with what is live, or not at all."""

    def __init__(self) -> None:
        self.live: dict[str, LiveRelease] | None = {"food": FIRST}
        self.asked = 0

    def __call__(self) -> dict[str, dict[str, Any]]:
        self.asked += 1
        if self.live is None:
            raise TimeoutError("it restarts")
        return {name: asdict(live) for name, live in self.live.items()}


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def releases(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Releases:
    monkeypatch.setattr(collection, "read_release", lambda uri: f"release of {uri}")
    return Releases(coordinator, lambda live: object())  # type: ignore[arg-type, return-value]


def test_what_is_known_holds_while_the_coordinator_restarts(
    releases: Releases, coordinator: Coordinator
) -> None:
    known = releases.live("food")
    assert known is not None
    assert known[:2] == (FIRST, "release of first")
    coordinator.live = None
    assert releases.live("food", look=True) == known
    coordinator.live = {}
    assert releases.live("food", look=True) is None


def test_shards_are_opened_once_for_a_release(releases: Releases, coordinator: Coordinator) -> None:
    first = releases.live("food")
    assert releases.live("food", look=True) is first
    coordinator.live = {"food": replace(FIRST, uri="second", number=2)}
    second = releases.live("food", look=True)
    assert first is not None
    assert second is not None
    assert second[1] == "release of second"
    assert second[2] is not first[2]


def test_a_release_that_cannot_be_read_is_an_error_of_its_collection_alone(
    releases: Releases, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(uri: str) -> str:
        if uri == "gone":
            raise CorruptData("gone: no release.json")
        return f"release of {uri}"

    monkeypatch.setattr(collection, "read_release", read)
    lost = replace(FIRST, collection="a", uri="gone")
    coordinator.live = {"a": lost, "food": replace(FIRST, uri="second")}
    found = releases.live("food", look=True)
    assert found is not None
    assert found[1] == "release of second"
    for look in (False, True):
        with pytest.raises(CorruptData, match=r"no release\.json"):
            releases.live("a", look=look)
    coordinator.live = {"a": replace(lost, uri="sent again")}
    found = releases.live("a", look=True)
    assert found is not None
    assert found[1] == "release of sent again"


def test_the_coordinator_is_asked_twice_a_second_at_most(
    releases: Releases, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(collection.time, "monotonic", lambda: now)
    asked = []
    for moment in (100.0, 100.3, 100.5, 100.6, 101.0, 101.2):
        now = moment
        releases.live("food")
        asked.append(coordinator.asked)
    assert asked == [1, 1, 1, 2, 2, 3]
