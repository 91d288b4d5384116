"""`explain` says what training changed: the parent's view of the same candidates, and who pulled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection
from dsearch.engine.models.training_record import TrainingInfluences
from dsearch.errors import CorruptData
from dsearch.types import Document, Mode

QUERY = "cheese and bread with honey"


def moved_head(heads: int = 1, seed: int = 3) -> Head:
    torch.manual_seed(seed)
    head = Head(32, heads=heads, rank=4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return head


def lessons_for(collection: Collection, texts: list[str] | None) -> TrainingInfluences:
    generator = np.random.default_rng(0)
    row = int(collection.store.rows_of(["d1"])["d1"])
    states = collection.encoder.encode_queries(["honey", "music", "cheese"])
    pulls = generator.standard_normal((3, 32)).astype(np.float32)
    owners, rows = np.array([0, 2]), np.array([row, row + 1])
    return TrainingInfluences(states, pulls, owners, rows, np.array([2, 1], np.float32), texts)


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
@pytest.mark.parametrize("hops", [1, 2])
def test_score_is_the_parents_and_what_was_gained(collection: Collection, mode: Mode, hops: int) -> None:
    collection.upsert([Document("fresh", "cheese and bread and numbers", title="honey bread")])
    first = collection.add_model(moved_head(seed=1), {})
    version = collection.add_model(moved_head(seed=2), {}, parent=first)
    options = {"mode": mode, "hops": hops, "hop_strength": 0.5, "limit": 50}
    before = {hit.id: hit for hit in collection.search(QUERY, model=first, **options).hits}
    hits = collection.search(QUERY, model=version, explain=True, **options).hits
    assert len(hits) == len(before)  # every document is a candidate of both
    for hit in hits:
        assert hit.explain is not None
        learned = hit.explain.learned
        assert learned is not None
        assert (learned.parent, learned.lessons) == (first, None)
        assert learned.score + learned.dense + learned.keyword == pytest.approx(hit.score, abs=1e-5)
        then = before[hit.id]
        assert (learned.rank, learned.score) == (then.rank, pytest.approx(then.score, abs=1e-5))
        assert learned.weight == pytest.approx(then.weight, abs=1e-5)
        if mode == "keyword":
            assert learned.dense == 0
    assert mode == "keyword" or any(hit.rank != before[hit.id].rank for hit in hits)


def test_heads_count_by_their_shares(collection: Collection) -> None:
    version = collection.add_model(moved_head(heads=3), {})
    for hit in collection.search(QUERY, model=version, explain=True).hits:
        explain = hit.explain
        assert explain is not None
        assert explain.learned is not None
        now = sum(share * part for share, part in zip(explain.shares, explain.dense, strict=True))
        then = {one.id: one for one in collection.search(QUERY, model="v0", explain=True, limit=50).hits}
        before = then[hit.id].explain
        assert before is not None
        assert explain.learned.dense == pytest.approx(now - before.dense[0], abs=1e-5)


def test_the_untrained_model_has_learned_nothing(collection: Collection) -> None:
    hit = collection.search(QUERY, explain=True).hits[0]
    assert hit.explain is not None
    assert hit.explain.learned is None


def test_lessons_by_the_formula(collection: Collection) -> None:
    lessons = lessons_for(collection, ["honey", "music", "cheese"])
    version = collection.add_model(moved_head(), {}, lessons=lessons)
    state = collection.encoder.encode_queries([QUERY])[0]
    for hit in collection.search(QUERY, model=version, explain=True).hits:
        assert hit.explain is not None
        assert hit.explain.learned is not None
        shown = hit.explain.learned.lessons
        assert shown is not None
        row = collection.store.rows_of([hit.id])[hit.id]
        embedding = collection.store.embeddings(np.array([row]))[0]
        effects = (lessons.states @ state) * (lessons.pulls @ embedding)
        by_text = dict(zip(["honey", "music", "cheese"], effects / np.abs(effects).sum(), strict=True))
        assert {one.query: one.share for one in shown} == pytest.approx(by_text, abs=1e-5)
        assert [abs(one.share) for one in shown] == sorted((abs(one.share) for one in shown), reverse=True)
        grades = {one.query: one.grade for one in shown}
        assert grades["music"] is None
        assert (grades["honey"] == 2.0) == (hit.id == "d1")
    keyword = collection.search(QUERY, model=version, explain=True, mode="keyword").hits[0].explain
    assert keyword is not None
    assert keyword.learned is not None
    assert keyword.learned.lessons is None  # no embedding has a part in it


@pytest.mark.parametrize("texts", [None, ["honey", "music ☃", "cheese"]])
def test_lessons_travel_as_bytes(collection: Collection, texts: list[str] | None) -> None:
    lessons = lessons_for(collection, texts)
    read = TrainingInfluences.from_bytes(lessons.to_bytes())
    assert read.texts == texts
    for name in ("states", "pulls", "owners", "rows", "grades"):
        assert np.array_equal(getattr(read, name), getattr(lessons, name))
    for damaged in (b"", b"\0" * 40, lessons.to_bytes()[:-4]):
        with pytest.raises(CorruptData, match=r"lessons\.safetensors cannot be read"):
            TrainingInfluences.from_bytes(damaged)


def test_a_changed_file_of_lessons_is_noticed(collection: Collection) -> None:
    version = collection.add_model(moved_head(), {}, lessons=lessons_for(collection, None))
    path = collection.store.path / "models" / version / "lessons.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptData, match="SHA-256"):
        collection.search(QUERY, model=version, explain=True)
    assert collection.search(QUERY, model=version).hits  # nothing answers by it


def test_threads_that_ask_about_two_versions_get_their_own(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One asks for another version's at the moment when this one's were kept."""
    state: Any = collection
    kept: list[Any] = []
    found = {version: lessons_for(collection, [version]) for version in ("v1", "v2")}

    class Raced(type(state)):
        @property
        def _lessons(self) -> Any:
            return kept[-1] if kept else None

        @_lessons.setter
        def _lessons(self, value: Any) -> None:
            kept.append(value)
            if value[0] == "v1":
                self.lessons_of("v2")

    monkeypatch.setattr("dsearch.engine.state.state.load_lessons", lambda store, version: found[version])
    monkeypatch.setattr(state, "__class__", Raced)
    assert state.lessons_of("v1") is found["v1"]


def test_of_likeness_nothing_is_told_where_the_query_is_encoded_otherwise(collection: Collection) -> None:
    """Its state is of examples and a text, and the parent's would be of the text alone."""
    rotation = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))[0]
    change = EncoderChange(EncoderTraining("all"), {"weight": rotation})
    own = collection.add_model(moved_head(), {"scope": "query"}, encoder=change)
    plain = collection.add_model(moved_head(), {})
    options: Any = {"query": "honey", "explain": True, "limit": 3}
    for version, told in ((own, False), (plain, True)):
        hits = collection.similar(["d1"], model=version, **options).hits
        assert [hit.explain.learned is not None for hit in hits] == [told] * 3  # type: ignore[union-attr]
        searched = collection.search("honey", model=version, explain=True, limit=3).hits
        assert all(hit.explain.learned is not None for hit in searched)  # type: ignore[union-attr]
