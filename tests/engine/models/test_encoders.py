"""A model with a query encoder of its own: kept under a digest, served, compared, promoted and taken back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.guarded import guarded
from support.locks import WatchedLock, waiting
from support.patience import LATEST_S

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import AutomaticEncoder, EncoderChange, EncoderTraining
from dsearch.engine import Collection, QueryStates, SearchEngine, System, make_run
from dsearch.engine.models import encoders
from dsearch.engine.models.encoders import KEPT, WEIGHTS_NAME, ModelEncoders
from dsearch.errors import CorruptData, DsearchError, EncoderMismatch, EncoderUnavailable
from dsearch.lru_cache import LruCache
from dsearch.types import Query

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


QUERIES = ["apple bread", "honey ice", "kale"]


def turned(seed: int = 0) -> EncoderChange:
    """A rotation of the fake encoder's space: every ranking changes."""
    generator = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(32, 32, generator=generator))
    return EncoderChange(EncoderTraining("all"), {"weight": rotation})


def add(collection: Collection, seed: int = 0) -> str:
    return collection.add_model(Head(32), {"scope": "query"}, encoder=turned(seed))


def hits(collection: Collection, model: str | None = None) -> list[list[str]]:
    found = collection.search_batch(QUERIES, mode="dense", limit=16, model=model)
    return [[hit.id for hit in result.hits] for result in found]


def expected(collection: Collection, change: EncoderChange) -> list[list[str]]:
    encoder = HashingEncoder()
    encoder.load_state_dict({"weight": change.tensors["weight"]})
    states = encoder.encode_queries(QUERIES)
    scores = states @ collection.snapshot.generation.embeddings.T
    return [[f"d{i}" for i in np.argsort(-row, kind="stable")] for row in scores]


def test_search_speaks_with_the_encoder_of_the_model(collection: Collection) -> None:
    before = hits(collection)
    version = add(collection)
    assert hits(collection) == before
    assert hits(collection, version) == expected(collection, turned())
    assert hits(collection, version) != before
    collection.promote(version)
    assert hits(collection) == expected(collection, turned())
    assert hits(collection, "v0") == before
    collection.promote("v0")
    assert hits(collection) == before
    result = collection.search(QUERIES[0], model=version)
    assert result.stamp.model == version


def test_attention_and_runs_speak_with_it_too(collection: Collection) -> None:
    version = add(collection)
    states = collection.encoder_of(version).encode_queries(QUERIES)
    by_text = collection.attend(QUERIES, model=version, mode="dense")
    by_state = collection.attend(torch.as_tensor(states), model=version, mode="dense")
    assert by_text.ids == by_state.ids
    queries = [Query(f"q{i}", text) for i, text in enumerate(QUERIES)]
    run = make_run(collection, queries, System("dense", version), depth=16)
    assert [[id for id, _ in run[query.id]] for query in queries] == expected(collection, turned())
    known = QueryStates(collection, queries)
    np.testing.assert_array_equal(known.of(version), states)
    assert known.of("v0") is known.of("v0")
    assert not np.array_equal(known.of("v0"), known.of(version))


def test_it_survives_reopening_and_names_its_identity(collection: Collection, tmp_path: Path) -> None:
    version = add(collection)
    answered = hits(collection, version)
    identity = collection.encoder_of(version).identity
    assert identity != collection.encoder.identity
    assert identity.to_dict() == collection.store.model(version).record["query_encoder"]["identity"]
    assert collection.store.model(version).record["format"] == 2
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        again = other.collection("food")
        assert hits(again, version) == answered
        assert again.encoder_of(version).identity == identity


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_changed_file_is_refused(collection: Collection, tmp_path: Path, damage: str) -> None:
    version = add(collection)
    path = collection.store.path / "models" / version / WEIGHTS_NAME
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) - (damage == "cut")])
    with pytest.raises(CorruptData, match=f"model {version}: .*promote another version"):
        collection.search("apple", model=version)
    with pytest.raises(CorruptData, match=f"model {version}"):
        collection.promote(version)
    assert collection.live_model == "v0"


def test_few_encoders_stay_in_memory(collection: Collection) -> None:
    versions = [add(collection, seed) for seed in range(KEPT + 2)]
    encoders = [collection.encoder_of(version) for version in versions]
    assert collection.encoder_of(versions[-1]) is encoders[-1]
    assert collection.encoder_of(versions[0]) is not encoders[0]
    assert len(collection._encoders._loaded) == KEPT
    assert collection.encoder_of("v0") is collection.encoder


def test_the_encoder_that_was_asked_last_stays(collection: Collection) -> None:
    first, second, third = (add(collection, seed) for seed in range(KEPT + 1))
    kept = collection.encoder_of(first)
    collection.encoder_of(second)
    assert collection.encoder_of(first) is kept
    collection.encoder_of(third)  # the second makes room
    assert collection.encoder_of(first) is kept


def test_an_export_of_a_damaged_file_does_not_answer(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export was made of the whole file, and needs none."""
    version = add(collection)
    monkeypatch.setattr(encoders, "load_trained", lambda *_: HashingEncoder())
    path = collection.store.path / "models" / version / WEIGHTS_NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptData, match=f"model {version}: .*train again"):
        collection.encoder_of(version)


def test_only_the_encoder_that_answers_is_exported(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes: not of each version that is compared."""
    started: list[str] = []

    class Export(AutomaticEncoder):
        def __init__(self, name: str):
            self.name = name

        def start(self) -> None:
            started.append(self.name)

    live, other = add(collection), add(collection, 1)
    collection.store.promote(live)
    names = iter([other, live])
    monkeypatch.setattr(encoders, "load_trained", lambda *_: Export(next(names)))
    collection.encoder_of(other)
    assert started == []
    collection.encoder_of(live)
    assert started == [live]


def test_an_encoder_that_many_ask_for_is_loaded_once(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = add(collection)
    load, loads, encoders = ModelEncoders._load, list[str](), list[Any]()
    monkeypatch.setattr(collection._encoders, "_loading", loading := WatchedLock())

    def watched(self: ModelEncoders, version: str, described: dict[str, Any]) -> Any:
        loads.append(version)
        return load(self, version, described)

    monkeypatch.setattr(ModelEncoders, "_load", watched)
    with waiting(loading, lambda: encoders.append(collection.encoder_of(version))):
        assert loads == []  # another thread is at it
        ready = collection.encoder
        collection._encoders._loaded.put(version, ready)
    assert (encoders, loads) == ([ready], [])


def test_an_encoder_is_loaded_before_its_version_answers(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first search after a promotion would wait for it."""
    first, second = add(collection), add(collection, 1)
    load, live = ModelEncoders._load, list[str]()

    def watched(self: ModelEncoders, version: str, described: dict[str, Any]) -> Any:
        live.append(collection.live_model)
        return load(self, version, described)

    monkeypatch.setattr(ModelEncoders, "_load", watched)
    monkeypatch.setattr(collection, "_compared", None)
    collection.promote(first)  # no text was encoded here: by a command, say, that ends at once
    assert live == ["v0"] * collection.rebuilder.by_itself
    hits(collection)
    del live[:]
    collection.promote(second)
    assert live == [first]
    assert hits(collection) == expected(collection, turned(1))
    assert live == [first]


@pytest.mark.parametrize("error", [EncoderMismatch, EncoderUnavailable])
def test_a_version_whose_encoder_cannot_be_loaded_here_is_promoted(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, error: type[DsearchError]
) -> None:
    """Other machines may have its weights; a search of this one says what is missing."""
    version = add(collection)
    hits(collection)  # texts are encoded here, so the promotion tries to load it

    def missing(self: ModelEncoders, version: str, described: dict[str, Any]) -> Any:
        raise error("no weights here")

    monkeypatch.setattr(ModelEncoders, "_load", missing)
    collection.promote(version)
    assert collection.live_model == version
    with pytest.raises(error, match="no weights here"):
        hits(collection)
    assert collection.rollback() == "v0"


def test_a_version_in_memory_answers_while_another_is_loaded(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(collection), add(collection, 1)
    collection.promote(first)
    answered = hits(collection)
    load, loading, go_on = ModelEncoders._load, Event(), Event()

    def slow(self: ModelEncoders, version: str, described: dict[str, Any]) -> Any:
        loading.set()
        assert go_on.wait(LATEST_S)
        return load(self, version, described)

    monkeypatch.setattr(ModelEncoders, "_load", slow)
    with ThreadPoolExecutor(2) as pool:
        try:
            promotion = pool.submit(collection.promote, second)
            assert loading.wait(LATEST_S)
            assert pool.submit(hits, collection).result(LATEST_S) == answered
        finally:
            go_on.set()
        promotion.result()
    assert hits(collection) == expected(collection, turned(1))


def test_what_a_search_loads_can_still_learn(collection: Collection) -> None:
    """A search loads it under inference mode, whose tensors no gradient could ever pass."""
    version = add(collection)
    with torch.inference_mode():
        encoder = collection.encoder_of(version)
    assert isinstance(encoder, torch.nn.Module)
    assert not any(weight.is_inference() for weight in encoder.parameters())


def test_a_search_of_two_stages_runs_the_encoder_once(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.ingest([], second_stage=True)
    assert collection.snapshot.tokens is not None
    head = Head(32).reranking(SecondStage())
    version = collection.add_model(head, {"scope": "query"}, encoder=turned())
    encoder = collection.encoder_of(version)
    passes: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        encode = getattr(encoder, name)

        def call(*arguments: object) -> object:
            passes.append(name)
            return encode(*arguments)

        return call

    for name in ("encode_queries", "encode_tokens"):
        monkeypatch.setattr(encoder, name, counted(name), raising=False)
    collection.search(QUERIES[0], model=version, stages=2)
    assert passes == ["encode_tokens"]
    collection.search(QUERIES[1], model=version, stages=1)
    assert passes == ["encode_tokens", "encode_queries"]
