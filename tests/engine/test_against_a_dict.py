"""The engine against a dict: any sequence of writes, builds, promotions, crashes and restores shows exactly
what a dict would, by every way of asking."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.fakes import HashingEncoder
from support.forked import in_memory
from support.sizes import by_size

from dsearch.engine import SearchEngine
from dsearch.engine.maintenance.compact import compact
from dsearch.errors import Conflict, DocumentNotFound
from dsearch.types import Document

pytestmark = pytest.mark.crash

STEPS = by_size(400, 10_000)
ROUND = settings(
    max_examples=by_size(8, 24),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
DIMENSION = 6
IDS = st.sampled_from([f"d{n}" for n in range(8)])
WORDS = st.lists(st.sampled_from(["apple", "bread", "cheese", "dough"]), min_size=1, max_size=4)
DOCUMENTS = st.lists(
    st.builds(
        lambda id, words, number: Document(id, f"every {' '.join(words)}", metadata={"number": number}),
        IDS,
        WORDS,
        st.integers(0, 3),
    ),
    max_size=3,
    unique_by=lambda document: document.id,
)


class EngineMachine(RuleBasedStateMachine):
    steps = 0

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=in_memory()))  # syncing thousands of files took minutes
        self.home = self.folder / "home"
        self.homes = 0
        self.documents: dict[str, Document] = {}
        self.models = 0
        self.live = "v0"
        self.open()
        self.engine.create("c")

    def open(self) -> None:
        self.engine = SearchEngine(self.home, encoder=lambda: HashingEncoder(DIMENSION))

    @property
    def collection(self):
        return self.engine.collection("c")

    # ---- writing

    @rule(documents=DOCUMENTS)
    def upsert(self, documents: list[Document]) -> None:
        self.collection.upsert(documents)
        self.documents |= {document.id: document for document in documents}

    @rule(documents=DOCUMENTS)
    def ingest(self, documents: list[Document]) -> None:
        self.collection.ingest(documents)
        self.documents |= {document.id: document for document in documents}

    @rule(ids=st.lists(IDS, max_size=2))
    def delete(self, ids: list[str]) -> None:
        receipt = self.collection.delete(ids)
        assert receipt.deleted == len({id for id in ids if id in self.documents})
        for id in ids:
            self.documents.pop(id, None)

    @rule(number=st.integers(0, 3))
    def delete_matching(self, number: int) -> None:
        self.collection.delete_matching({"number": {"eq": number}})
        self.documents = {
            id: document for id, document in self.documents.items() if document.metadata["number"] != number
        }

    @rule(id=IDS, number=st.integers(0, 3))
    def change_metadata(self, id: str, number: int) -> None:
        if id not in self.documents:
            with pytest.raises(DocumentNotFound):
                self.collection.update_metadata(id, {"number": number})
            return
        self.collection.update_metadata(id, {"number": number})
        self.documents[id] = replace(self.documents[id], metadata={"number": number})

    # ---- the life of a collection

    @rule()
    def build_and_publish(self) -> None:
        before = self.collection.snapshot.generation.number
        assert self.collection.refresh() > before
        assert len(self.collection.snapshot.fresh) == 0

    @rule()
    def train_and_promote(self) -> None:
        self.models += 1
        version = self.collection.add_model(self.collection.head("v0"), {"n": self.models})
        self.collection.promote(version)
        self.live = version

    @rule()
    def roll_back(self) -> None:
        with suppress(Conflict):  # nothing answered before
            self.live = self.collection.rollback()

    @rule()
    def purge(self) -> None:
        assert compact(self.collection).complete

    @rule()
    def crash(self) -> None:
        """What the kernel has at this moment is all that is left."""
        self.homes += 1
        left = self.folder / f"home-{self.homes}"
        # By another process: closing a file that SQLite has open here would drop its locks.
        subprocess.run(["cp", "-a", str(self.home), str(left)], check=True)
        self.engine.close()
        shutil.rmtree(self.home)
        self.home = left
        self.open()

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.open()

    @rule()
    def back_up_and_restore(self) -> None:
        copy = self.folder / "backup"
        self.engine.backup("c", copy)
        self.collection.upsert([Document("lost", "every word", metadata={"number": 9})])
        self.engine.drop("c")
        self.engine.restore(copy)
        shutil.rmtree(copy)

    @rule()
    def verify(self) -> None:
        assert self.engine.verify("c").damage == ()

    # ---- what must be seen

    @rule(number=st.integers(0, 3))
    def search_filtered(self, number: int) -> None:
        wanted = {id for id, document in self.documents.items() if document.metadata["number"] <= number}
        for mode in ("dense", "keyword"):
            hits = self.collection.search("every", mode=mode, filter={"number": {"lte": number}}).hits
            assert {hit.id for hit in hits} == wanted

    @rule(words=WORDS)
    def search_dense(self, words: list[str]) -> None:
        encoder = HashingEncoder(DIMENSION)
        (query,) = encoder.encode_queries([" ".join(words)])
        found = self.collection.search(" ".join(words), mode="dense", limit=20, model="v0").hits
        scores = {
            id: float(encoder.encode_documents([document.content])[0] @ query)
            for id, document in self.documents.items()
        }
        assert {hit.id for hit in found} == set(scores)
        np.testing.assert_allclose([hit.score for hit in found], [scores[hit.id] for hit in found], atol=1e-5)
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)

    @invariant()
    def shows_what_the_dict_has(self) -> None:
        type(self).steps += 1
        collection = self.collection
        assert {document.id: document for document in collection.store.list()} == self.documents
        found = collection.search("every", mode="keyword", limit=20, coverage=False)
        assert {hit.id: hit.text for hit in found.hits} == {
            id: document.text for id, document in self.documents.items()
        }
        assert found.stamp.model == collection.live_model == self.live
        assert found.stamp.sequence == collection.snapshot.sequence

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.folder)


def test_engine_against_a_dict() -> None:
    """How many steps a sequence takes is drawn too, so whole rounds of them run until there are enough."""
    EngineMachine.steps = 0
    while EngineMachine.steps < STEPS:
        run_state_machine_as_test(EngineMachine, settings=ROUND)
