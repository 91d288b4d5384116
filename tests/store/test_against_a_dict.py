"""The store against a dict: any sequence of writes and reopenings shows exactly what a dict would."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.sizes import by_size

from dsearch.errors import DocumentNotFound
from dsearch.store import Store, folders
from dsearch.types import Document

IDS = st.sampled_from(["a", "b", "c", "é", "d/e", "\x00", "𝔸"])
TEXTS = st.sampled_from(["one", "two", "three words here", "nul \x00", "x\u2028y"])
METADATA = st.dictionaries(
    st.just("k") | st.text(max_size=3).filter(lambda key: key.isprintable()),
    st.one_of(
        TEXTS.filter(lambda text: "\x00" not in text),
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    max_size=2,
)
DOCUMENTS = st.lists(
    st.builds(Document, id=IDS, text=TEXTS, metadata=METADATA, value=st.none() | st.just(1.5)),
    max_size=4,
    unique_by=lambda document: document.id,
)


def vector(content: str) -> np.ndarray:
    return np.full(3, float(len(content)), dtype=np.float32)


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.store = Store.create(self.home / "c", name="c", encoder={}, dimension=3)
        self.documents: dict[str, Document] = {}
        self.rows: dict[str, int] = {}
        self.embedded: set[str] = set()
        self.given = 0
        self.purged = 0
        self.seen = self.store.snapshot()

    @rule(documents=DOCUMENTS, with_embeddings=st.booleans())
    def upsert(self, documents: list[Document], with_embeddings: bool) -> None:
        vectors = np.array([vector(d.content) for d in documents], dtype=np.float32).reshape(-1, 3)
        before = self.store.sequence
        receipt = self.store.upsert(documents, vectors if with_embeddings else None)
        changed = False
        for document, row in zip(documents, receipt.rows, strict=True):
            old = self.documents.get(document.id)
            same_content = old is not None and old.content == document.content
            if old is None or repr(old) != repr(document):  # by repr: 1, 1.0 and True are different JSON
                self.given += 1
                assert row == self.given
                changed = True
            else:
                assert row == self.rows[document.id]
            if with_embeddings and document.id not in self.embedded:
                changed = True
            if not same_content:
                self.embedded.discard(document.id)
            if with_embeddings:
                self.embedded.add(document.id)
            self.documents[document.id] = document
            self.rows[document.id] = row
        assert receipt.sequence == self.store.sequence == before + changed

    @rule(ids=st.lists(IDS, max_size=3))
    def delete(self, ids: list[str]) -> None:
        present = {id for id in ids if id in self.documents}
        receipt = self.store.delete(ids)
        assert receipt.deleted == len(present)
        for id in present:
            del self.documents[id]
            del self.rows[id]
            self.embedded.discard(id)

    @rule(text=TEXTS)
    def delete_by_metadata(self, text: str) -> None:
        gone = {id for id, document in self.documents.items() if document.metadata.get("k") == text}
        assert self.store.delete_matching({"k": {"eq": text}}).deleted == len(gone)
        for id in gone:
            del self.documents[id]
            del self.rows[id]
            self.embedded.discard(id)

    @rule(id=IDS, changes=METADATA)
    def change_metadata(self, id: str, changes: dict[str, Any]) -> None:
        if id not in self.documents:
            with pytest.raises(DocumentNotFound):
                self.store.update_metadata(id, changes)
            return
        old = self.documents[id]
        merged = {
            key: value
            for key, value in {**old.metadata, **changes}.items()
            if changes.get(key, 0) is not None
        }
        (self.rows[id],) = self.store.update_metadata(id, changes).rows
        self.documents[id] = replace(old, metadata=merged)
        self.given += repr(dict(sorted(merged.items()))) != repr(dict(sorted(old.metadata.items())))

    @rule(share=st.floats(0, 1))
    def encode_some(self, share: float) -> None:
        waiting = self.store.pending().rows
        waiting = waiting[: round(share * len(waiting))]
        contents = self.store.contents(waiting)
        self.store.set_embeddings(waiting, np.array([vector(c) for c in contents]).reshape(-1, 3))
        self.embedded |= set(self.store.ids(waiting))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.home / "c")

    @rule()
    def verify(self) -> None:
        assert self.store.verify().damage == ()

    @rule()
    def purge(self) -> None:
        tombstones = self.store.count().tombstones
        report = self.store.purge()
        assert (report.rows, report.kept) == (tombstones, 0)
        self.purged += tombstones
        self.seen = self.store.snapshot()  # what went before is forgotten

    @rule()
    def back_up_and_restore(self) -> None:
        self.store.backup(self.home / "backup")
        self.store.upsert([Document("lost", "x")])
        self.store.close()
        shutil.rmtree(self.home / "c")
        folders.restore_collection(self.home / "c", self.home / "backup")
        shutil.rmtree(self.home / "backup")
        self.store = Store.open(self.home / "c")

    @rule()
    def look(self) -> None:
        self.seen = self.store.snapshot()

    @invariant()
    def shows_what_the_dict_has(self) -> None:
        listed = self.store.list()
        assert [document.id for document in listed] == sorted(self.documents)
        assert {document.id: document for document in listed} == self.documents
        assert self.store.rows_of(list("abc")) == {id: self.rows[id] for id in "abc" if id in self.rows}
        searchable = sorted(self.rows[id] for id in self.embedded)
        rows = self.store.rows()
        assert rows.tolist() == searchable
        expected = [vector(content) for content in self.store.contents(rows)]
        np.testing.assert_array_equal(self.store.embeddings(rows), np.array(expected).reshape(-1, 3))
        counts = self.store.count()
        assert (counts.documents, counts.pending) == (
            len(self.documents),
            len(self.documents) - len(searchable),
        )
        assert counts.documents + counts.tombstones == self.given - self.purged

    @invariant()
    def changes_lead_from_any_snapshot_to_the_present(self) -> None:
        changes = self.store.changes_since(self.seen.sequence)
        kept = np.setdiff1d(self.seen.rows, changes.removed)
        assert len(kept) == len(self.seen.rows) - len(changes.removed)
        assert np.union1d(kept, changes.added).tolist() == self.store.rows().tolist()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.home)


TestStoreAgainstADict = StoreMachine.TestCase
TestStoreAgainstADict.settings = settings(max_examples=by_size(12, 200), stateful_step_count=20)
