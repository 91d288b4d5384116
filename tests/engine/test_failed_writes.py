"""What a write leaves behind when one of those that it calls raises: nothing that keeps the next from it.

Every method of the store, of the live state and of the other parts of a collection that a write calls raises
in its turn. Afterwards no lock is held, nothing runs, no unfinished file is left, the next write succeeds,
and searches find what is stored.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.engine.reference import turned_head
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.indexing.tokens import TokenKeeper
from dsearch.engine.models.documents import ModelDocuments
from dsearch.engine.models.encoders import ModelEncoders
from dsearch.engine.rebuild import Rebuilder
from dsearch.engine.state.caches import HeadCache
from dsearch.engine.state.remembered import RememberedRows
from dsearch.engine.state.snapshots import Snapshots
from dsearch.errors import DsearchError
from dsearch.index.token_spool import TokenSpool
from dsearch.store import Store
from dsearch.types import Document

PARTS = (
    *(HashingEncoder, HeadCache, Snapshots, ModelDocuments, ModelEncoders),
    *(Rebuilder, RememberedRows, Store, TokenKeeper, TokenSpool),
)
pytestmark = pytest.mark.usefixtures("unchecked")
number = itertools.count()


class Fault(Exception):
    pass


class Faults:
    """Stands before the public methods of the parts: notes those that are called, or makes one raise once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.called: dict[str, None] = {}
        self.raising = ""
        for part in PARTS:
            for name, method in [*vars(part).items()]:
                if inspect.isfunction(method) and not name.startswith("_"):
                    monkeypatch.setattr(part, name, self._before(f"{part.__name__}.{name}", method))

    def _before(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(*given: Any, **named: Any) -> Any:
            self.called[name] = None
            if name == self.raising:
                self.raising = ""
                raise Fault(name)
            return method(*given, **named)

        return called


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("failed"), encoder=HashingEncoder) as engine:
        made = engine.create("failed")
        made.ingest(new(6), second_stage=True)
        for _ in range(2):
            made.add_model(turned_head(), {})
        made.promote("v1")
        yield made


def new(count: int) -> list[Document]:
    return [Document(f"d{next(number)}", f"honey number {at}", metadata={"n": at}) for at in range(count)]


def any_id(collection: Collection) -> str:
    return collection.store.list(limit=1)[0].id


WRITES: dict[str, Callable[[Collection], object]] = {
    "upsert": lambda c: c.upsert(new(2)),
    "delete": lambda c: c.delete([any_id(c)]),
    "delete_matching": lambda c: c.delete_matching({"n": {"eq": 1}}),
    "update_metadata": lambda c: c.update_metadata(any_id(c), {"n": next(number)}),
    "ingest": lambda c: c.ingest(new(2)),
    "refresh": lambda c: c.refresh(),
    "add_model": lambda c: c.add_model(turned_head(), {}),
    "promote": lambda c: c.promote("v2" if c.live_model == "v1" else "v1"),
    "rollback": lambda c: (WRITES["promote"](c), c.rollback()),
    "delete_model": lambda c: c.delete_model(c.add_model(turned_head(), {})),
    "catch_up": lambda c: c.catch_up(),
}


def unfinished(collection: Collection) -> list[str]:
    root: Path = collection.store.path
    return [str(path) for path in root.rglob("*") if path.name.startswith(".") and "writing" in path.name]


def left_behind(collection: Collection) -> list[str]:
    """What keeps others waiting, or would never go away."""
    rebuilder = collection.rebuilder
    locks = {
        "writing": collection._writing,
        "building": rebuilder._building,
        "starting": rebuilder._starting,
        "remembered": collection.remembered._lock,
    }
    left = [f"lock {name}" for name, lock in locks.items() if lock.locked()]
    left += ["a running build"] if rebuilder.status()["running"] else []
    return left + unfinished(collection)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_fails_anywhere_leaves_the_next_one_free(
    written: Collection, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    faults, write = Faults(monkeypatch), WRITES[name]
    if name == "ingest":  # what its refresh calls has a turn of its own
        written.refresh()
    others = [*faults.called]
    write(written)
    wrong, threads = list[str](), threading.active_count()
    for method in [*faults.called][len(others) :]:
        faults.raising = method
        with suppress(Fault, DsearchError):
            write(written)
        faults.raising = ""
        if left := left_behind(written):
            wrong.append(f"{method}: {', '.join(left)}")
            break
        write(written)
        stored = {document.id for document in written.store.list(limit=1000)}
        hits = {hit.id for hit in written.search("honey", limit=1000).hits}
        wrong += [] if stored == hits else [f"{method}: {len(stored)} documents and {len(hits)} hits"]
    assert not wrong, "\n".join([name, *wrong])
    assert threading.active_count() <= threads
