"""What a collection is made with reaches it in each way of making one, and stays in all that builds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.options import KeyOptions
from dsearch.types import Document

SETTINGS: dict[str, Any] = {
    "keys": KeyOptions("SQ8", 0.75, 100_000),
    "language": "german",
    "search_fields": ("kind", "place"),
    "passages": PassageOptions(tokens=16, overlap=4),
}
ALSO = {"keys": ["kind"], "language": ["stemmer"]}
pytestmark = pytest.mark.usefixtures("unchecked")


def settings_of(collection: Collection) -> dict[str, Any]:
    """What answers has, which is what the records say."""
    told, generation = collection.describe(), collection.snapshot.generation
    assert generation.keyword is not None
    return {
        "keys": KeyOptions.of(collection.store),
        "kind": generation.dense.kind,
        "language": told.language,
        "stemmer": generation.keyword.tokenizer.stemmer,
        "search_fields": tuple(told.search_fields),
        "passages": told.passages,
        "dimension": collection.store.dimension,
        "words of a field": bool(collection.search("seltsam", mode="keyword").hits),
    }


def documents(count: int = 3) -> list[Document]:
    return [Document(f"d{n}", f"honey {n} " * 30, metadata={"kind": "seltsam"}) for n in range(count)]


def test_each_setting_reaches_what_is_made(engine: SearchEngine) -> None:
    names = {*inspect.signature(SearchEngine.create).parameters} - {"self", "name"}
    assert names == {*SETTINGS, "dimension"}
    plain = settings_of(engine.create("plain"))
    for name, value in {**SETTINGS, "dimension": 5}.items():
        alone = settings_of(engine.create(f"alone-{name}".replace("_", "-"), **{name: value}))
        for shown in (name, *ALSO.get(name, ())):
            assert alone[shown] != plain[shown], (name, shown)
        own = {"kind": value.kind} if name == "keys" else {name: value}
        or_new = settings_of(engine.collection_or_new(f"new-{name}".replace("_", "-"), **own))
        assert or_new[name] == (KeyOptions(value.kind) if name == "keys" else alone[name]), name


def restored(engine: SearchEngine) -> Iterator[Collection]:
    backup = engine.home.path.parent / "backup"
    engine.backup("made", backup)
    with SearchEngine(engine.home.path.parent / "other", encoder=HashingEncoder) as other:
        yield other.restore(backup)


def opened_and_repaired(engine: SearchEngine) -> Iterator[Collection]:
    generation: Path = engine.collection("made").snapshot.generation.folder
    engine.close()
    with SearchEngine(engine.home.path, encoder=HashingEncoder) as again:
        yield again.collection("made")
    (generation / "rows.npy").unlink()
    with SearchEngine(engine.home.path, encoder=HashingEncoder) as again:
        assert again.collection("made").restore_derived()
        yield again.collection("made")


def migrated(engine: SearchEngine) -> Iterator[Collection]:
    engine.migrate("made", HashingEncoder(name="newer"), passages=SETTINGS["passages"])
    yield engine.collection("made")


def done(work: Callable[[Collection], object]) -> Callable[[SearchEngine], Iterator[Collection]]:
    def doing(engine: SearchEngine) -> Iterator[Collection]:
        work(engine.collection("made"))
        yield engine.collection("made")

    return doing


BUILDS: dict[str, Callable[[SearchEngine], Iterator[Collection]]] = {
    "refresh": done(lambda c: c.refresh()),
    "ingest": done(lambda c: c.ingest(documents(5))),
    "compact": done(lambda c: compact(c, rebuild=True)),
    "restored": restored,
    "migrated": migrated,
    "opened and repaired": opened_and_repaired,
}


def test_settings_stay_in_all_that_builds(engine: SearchEngine) -> None:
    made = engine.create("made", **SETTINGS)
    made.ingest(documents())
    before, lost = settings_of(made), list[str]()
    assert before["words of a field"]
    for way, build in BUILDS.items():
        for after in build(engine):
            found = settings_of(after)
            lost += [f"{way}: {name}={found[name]!r}" for name in before if found[name] != before[name]]
    assert not lost, "\n".join(lost)
