"""The file of a query memory: what it holds, and what is refused of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from dsearch.attention.memory_rows import TRUSTED, FixedMemory
from dsearch.engine.models.memory import fixed_memory, memory_bytes, memory_from_bytes, memory_record
from dsearch.errors import CorruptData

Arrays = dict[str, np.ndarray]


def memory(**changes: Any) -> FixedMemory:
    parts: dict[str, Any] = {
        "states": np.eye(3, 4, dtype=np.float32),
        "embeddings": np.eye(2, 4, k=1, dtype=np.float32) * 3,
        "rows": np.array([10, 12]),
        "of_query": np.array([0, 0, 1, 2]),
        "of_document": np.array([0, 1, 1, 0]),
        "grades": np.array([4.0, 2.0, 1.0, 3.0]),
        "inserted": np.array([False, True, False, True]),
        "senders": np.array([TRUSTED, 5, TRUSTED]),
        "texts": ["one", "", "three ü"],
        "strength": 2.25,
        "temperature": 0.125,
        "null_level": 0.5,
    }
    return FixedMemory(**{**parts, **changes})


@pytest.mark.parametrize("lending", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("texts", [["one", "", "three ü"], None])
def test_the_file_gives_everything_back(texts: list[str] | None, lending: float) -> None:
    given = memory(texts=texts, lending=lending)
    content = memory_bytes(given)
    for read in (fixed_memory(content), memory_from_bytes(content)):
        assert read.texts == texts
        assert read.setting == pytest.approx(given.setting)
        for name, part in given.parts().items():
            np.testing.assert_array_equal(read.parts()[name], part)
            assert read.parts()[name].dtype == part.dtype


def test_a_memory_that_lends_all_is_one_that_earlier_releases_read() -> None:
    assert load(memory_bytes(memory()))["setting"].shape == (3,)
    assert load(memory_bytes(memory(lending=0.5)))["setting"].shape == (4,)
    assert "starts" not in load(memory_bytes(memory()))


def changed(change: Callable[[Arrays], object], texts: str | None = None) -> bytes:
    arrays = load(memory_bytes(memory()))
    change(arrays)
    written = json.dumps(["one", "", "three ü"]) if texts is None else texts
    return save(arrays, {"texts": written})


def test_earlier_files_have_no_senders() -> None:
    read = fixed_memory(changed(lambda arrays: arrays.pop("contributors")))
    assert read.senders.tolist() == [TRUSTED] * 3


def test_half_precision_is_read() -> None:
    """Format 9: embeddings in two bytes in place of eight bits."""
    given = memory(senders=None)
    parts = given.parts()
    arrays = {
        "states": given.states.astype(np.float16),
        "embeddings": given.embeddings.astype(np.float16),
        "setting": np.array([2.25, 0.125, 0.5]),
        **{name: parts[name] for name in ("rows", "of_query", "of_document", "grades", "inserted")},
    }
    read = fixed_memory(save(arrays))
    assert read.texts is None
    assert read.setting == pytest.approx(given.setting)
    np.testing.assert_allclose(read.states, given.states, atol=1e-3)
    np.testing.assert_allclose(read.embeddings, given.embeddings, atol=1e-2)
    assert read.grades.tolist() == given.grades.tolist()


def put(name: str, at: int, value: int) -> Callable[[Arrays], None]:
    return lambda arrays: arrays[name].__setitem__(at, value)


def short(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__setitem__(name, np.ascontiguousarray(arrays[name][:-1]))


DAMAGED: list[tuple[Callable[[Arrays], Any], str]] = [
    (put("of_query", 3, 3), "of_query has an index outside 0 to 2"),
    (put("of_query", 0, -1), "of_query has an index outside 0 to 2"),
    (put("of_document", 1, 2), "of_document has an index outside 0 to 1"),
    (put("of_document", 1, -1), "of_document has an index outside 0 to 1"),
    (short("of_query"), "of_query has an index outside"),
    (short("of_document"), "of_document has an index outside"),
    *((short(name), "its parts are of different lengths") for name in ("key_scales", "contributors")),
    *((short(name), "its parts are of different lengths") for name in ("scales", "rows", "inserted")),
    (lambda arrays: arrays.pop("grades"), "grades"),
    (lambda arrays: arrays.pop("setting"), "setting"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_parts_that_do_not_fit_are_damage(damage: Callable[[Arrays], Any], message: str) -> None:
    with pytest.raises(
        CorruptData, match=rf"memory\.safetensors cannot be read \(.*{message}.*; train again"
    ):
        fixed_memory(changed(damage))


@pytest.mark.parametrize("texts", ['["one", "two"]', "[", "7"])
def test_texts_that_do_not_fit_are_damage(texts: str) -> None:
    with pytest.raises(CorruptData, match="train again"):
        fixed_memory(changed(lambda arrays: None, texts))


def test_a_record_tells_sizes_and_setting() -> None:
    assert memory_record(memory(lending=0.25, strength=1 / 3)) == {
        "queries": 3,
        "documents": 2,
        "strength": 0.333333,
        "temperature": 0.125,
        "null_level": 0.5,
        "lending": 0.25,
    }
