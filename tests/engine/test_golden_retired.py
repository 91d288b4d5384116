"""Collections whose promoted model has a part that is not served any more open, and an ancestor answers.

index/retired was written while dsearch trained such parts, with the answers of every version. In `overlay`,
v1 is a plain head; v2 and v3 (promoted) have changed keys of single documents, each trained from the one
before. In `fusion-gate`, v1 (promoted) has a keyword weight of the query.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.paths import RETIRED

from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine, statistics
from dsearch.errors import Conflict, Gone
from dsearch.types import Document

EXPECTED = json.loads((RETIRED / "expected.json").read_text())
PROMOTED = {"overlay": "v3", "fusion-gate": "v1"}
ANSWERS = {"overlay": "v1", "fusion-gate": "v0"}
PARTS = {
    "overlay": "changed keys of single documents (--overlay)",
    "fusion-gate": "a keyword weight of the query (--fusion gate)",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy: opening a collection for writing changes its files."""
    return Path(shutil.copytree(RETIRED, tmp_path / "home"))


def require_answers(collection: Collection, version: str, model: str | None) -> None:
    """Compare the answers of `model` with those that `version` gave when the collection was written."""
    for before in EXPECTED[collection.name][version]:
        hits = collection.search(before["query"], limit=5, mode=before["mode"], model=model).hits
        assert [hit.id for hit in hits] == [id for id, _, _ in before["hits"]]
        for hit, (_, score, weight) in zip(hits, before["hits"], strict=True):
            assert (hit.score, hit.weight) == pytest.approx((score, weight), abs=1e-5)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", sorted(PROMOTED))
def test_the_nearest_ancestor_that_is_served_answers(
    home: Path, name: str, readonly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    promoted, answers = PROMOTED[name], ANSWERS[name]
    with SearchEngine(home, readonly=readonly, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection(name)
        assert collection.store.verify().ok
        assert (collection.store.live_model(), collection.live_model) == (promoted, answers)
        require_answers(collection, answers, None)
        require_answers(collection, answers, answers)
        assert collection.search("honey").stamp.model == answers
        said = [record.message for record in caplog.records]
        assert len(said) == 1  # once, not with every search
        for part in (f"model {promoted} was promoted", PARTS[name], f"{answers} answers in its place"):
            assert part in said[0]
        for described in (asdict(collection.describe()), statistics(collection)):
            assert (described["model"], described["model_problem"]) == (answers, said[0])


@pytest.mark.parametrize("name", sorted(PROMOTED))
def test_it_stays_listed_and_cannot_be_asked(home: Path, name: str) -> None:
    promoted, answers = PROMOTED[name], ANSWERS[name]
    engine = SearchEngine(home, readonly=True, encoder=lambda: HashingEncoder(8))
    with LocalEngine(engine) as client:
        listed = {one.version: one for one in client.models(name).models}
        assert listed[promoted].problem == PARTS[name]
        assert not listed[promoted].live
        assert listed[answers].live
        assert listed[answers].problem is None
        said = f"model {promoted} .* has {re.escape(PARTS[name])}.*ask with model {answers}, .* or train anew"
        with pytest.raises(Gone, match=said):
            client.search(name, "honey", model=promoted)
        with pytest.raises(Gone, match=said):
            client.head(name, promoted)


@pytest.mark.parametrize("name", sorted(PROMOTED))
def test_promoting_the_ancestor_settles_it(home: Path, name: str) -> None:
    promoted, answers = PROMOTED[name], ANSWERS[name]
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection(name)
        with pytest.raises(Gone, match=f"model {promoted}"):
            collection.promote(promoted)
        with pytest.raises(Conflict):
            collection.delete_model(promoted)  # the register still names it as the live one
        collection.promote(answers)
        assert collection.describe().model_problem is None
        require_answers(collection, answers, None)
        collection.delete_model(promoted)
        assert collection.live_model == answers


def test_a_rollback_goes_behind_what_answers(home: Path) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection("overlay")
        assert collection.live_model == "v1"
        assert collection.rollback() == "v0"
        with pytest.raises(Conflict, match="v0 answers, and nothing answered before it"):
            collection.rollback()


def test_a_child_of_one_answers(home: Path) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection("overlay")
        child = collection.add_model(collection.head("v1"), {}, parent="v3")
        collection.promote(child)
        assert collection.describe().model_problem is None
        require_answers(collection, "v1", None)
        assert collection.rollback() == "v1"


@pytest.mark.parametrize("name", sorted(PROMOTED))
def test_it_can_be_written_on(home: Path, name: str) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection(name)
        collection.upsert([Document(id="new", text="fresh figs")])
        collection.refresh()
        assert collection.search("fresh figs").hits[0].id == "new"
        require_answers_alike(collection, ANSWERS[name])


def require_answers_alike(collection: Collection, version: str) -> None:
    """Compare what answers without a model with what `version` gives."""
    ours, theirs = (collection.search("honey", model=model).hits for model in (None, version))
    assert [(hit.id, hit.score) for hit in ours] == [(hit.id, hit.score) for hit in theirs]
