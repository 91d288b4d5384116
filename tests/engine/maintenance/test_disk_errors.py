"""A disk that fails or is read-only ends `refresh` and `compact` in words; answers go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from support.fakes import HashingEncoder
from support.sizes import by_size

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.maintenance.verify import verify_collection
from dsearch.errors import DsearchError, InsufficientStorage, Unavailable
from dsearch.index.dense.index import DenseIndex
from dsearch.types import Document

CALLS = ("open", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir", "scandir")
WORK = {
    "refresh": lambda food: food.refresh(spawned=False),
    "compact": lambda food: compact(food, rebuild=True, spawned=False),
}


@contextmanager
def failing(number: int, code: int) -> Iterator[list[str]]:
    """The call of that number, of those that change files, raises; all are noted."""
    calls: list[str] = []
    originals = {name: getattr(os, name) for name in CALLS}

    def replaced(name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            if len(calls) - 1 == number:
                raise OSError(code, os.strerror(code), str(given[0]))
            return originals[name](*given, **named)

        return call

    for name in CALLS:
        setattr(os, name, replaced(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def changed(food: Collection, number: int) -> None:
    food.upsert([Document(f"new{number}", "apple honey")])
    food.delete([f"new{number - 1}"])


@pytest.mark.parametrize("work", WORK)
def test_an_error_of_the_disk_is_named_and_nothing_is_lost(
    tmp_path: Path, documents: list[Document], work: str
) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        food = engine.create("food")
        food.ingest(documents)
        changed(food, 0)
        with failing(-1, 0) as calls:
            WORK[work](food)
        refused: list[DsearchError] = []
        for trial, place in enumerate(np.linspace(0, len(calls) - 1, by_size(12, 200)).astype(int)):
            changed(food, trial + 1)
            ids = [document.id for document in food.store.list()]
            code = (errno.EIO, errno.EROFS, errno.ENOSPC)[trial % 3]
            try:
                with failing(int(place), code):
                    WORK[work](food)
            except DsearchError as error:
                refused.append(error)
            assert [document.id for document in food.store.list()] == ids
            assert f"new{trial + 1}" in [hit.id for hit in food.search("apple honey", limit=20).hits]
        assert len(refused) > 3
        assert {type(error) for error in refused} == {InsufficientStorage, Unavailable}
        assert all("All documents stand" in str(error) for error in refused)
        assert all("then run it again with: dsearch" in str(error) for error in refused)
        WORK[work](food)
    assert verify_collection(tmp_path / "home" / "food").damage == ()


@pytest.mark.parametrize(("words", "code"), [("No space left on device", errno.ENOSPC), ("x", errno.EIO)])
def test_faiss_names_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int
) -> None:
    def write_index(*given: Any) -> None:
        raise RuntimeError(f"Error in void faiss::write_index:\nwrite error: {words}")

    keys = DenseIndex.build(np.eye(8, dtype=np.float32), "Flat")
    monkeypatch.setattr(faiss, "write_index", write_index)
    with pytest.raises(OSError, match=words) as raised:
        keys.save(tmp_path / "keys.faiss")
    assert raised.value.errno == code
