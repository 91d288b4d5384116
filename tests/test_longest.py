"""The order of test files: the longest first, so that two processes end together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.longest import long_files, pytest_collection_modifyitems
from support.paths import TESTS


class _Item:
    """A test of a file, with markers."""

    def __init__(self, path: Path, *markers: str):
        self.path, self.markers = path, markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def test_listed_files_are_there_and_longest_first() -> None:
    listed = long_files()
    assert [name for name in listed if not (TESTS / name).is_file()] == []
    assert list(listed.values()) == sorted(listed.values(), reverse=True)


def test_files_stay_whole_listed_ones_first_and_then_by_marker() -> None:
    first, second, *_ = (TESTS / name for name in long_files())
    plain, crashing, outside = (
        TESTS / "test_plain.py",
        TESTS / "test_crashing.py",
        Path("/elsewhere/test_x.py"),
    )
    items: Sequence[_Item] = [
        _Item(plain),
        _Item(crashing),
        _Item(second),
        _Item(crashing, "crash"),
        _Item(outside),
        _Item(first),
        _Item(second, "ray"),
    ]
    ordered = list(items)
    pytest_collection_modifyitems(ordered)  # type: ignore[arg-type]
    assert [item.path for item in ordered] == [first, second, second, crashing, crashing, plain, outside]
