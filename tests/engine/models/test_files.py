"""Files of a model: the format says which parts it has, and all of them come back in both forms of a head."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine.models import files
from dsearch.engine.models.files import load_fixed_head, load_head, load_learned_queries, save_model
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.errors import Conflict, CorruptData, Gone, InvalidRequest, ModelNotFound, UnsupportedFormat
from dsearch.index.durable import file_digest
from dsearch.store import Store

RERANKER = RerankerIdentity("some/model", "cross-encoder", "ab" * 32)
LEARNED = LearnedQueries(["a query", "another"])
QUERIES = torch.nn.functional.normalize(
    torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), dim=-1
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "food", name="food", encoder={"name": "test"}, dimension=32) as created:
        yield created


def memory(lending: float = 1.0) -> QueryMemory:
    states, at = np.eye(2, 32, dtype=np.float32), np.arange(2)
    return QueryMemory(
        states, states, at + 1, at, at, np.ones(2), texts=["a", "b"], strength=2.0, lending=lending
    )


def stage(**parts: Any) -> SecondStage:
    made = SecondStage(**parts)
    with torch.no_grad():
        made.feature_weights += 0.5
    return made


PARTS: dict[str, tuple[int, Callable[[Head], object]]] = {
    "nothing": (1, lambda head: None),
    "weighting": (4, lambda head: head.weigh_keywords(0.9, 0.4)),
    "memory": (10, lambda head: setattr(head, "memory", memory())),
    "second stage": (17, lambda head: setattr(head, "second_stage", stage())),
    "score": (12, lambda head: setattr(head, "score", new_score("general", head.encoder_dim))),
    "output": (12, lambda head: head.open_output(2)),
    "excitation": (13, lambda head: head.open_excitation(3)),
    "reranker": (17, lambda head: setattr(head, "second_stage", stage(reranker=RERANKER))),
    "lending": (16, lambda head: setattr(head, "memory", memory(0.5))),
}


def format_of(store: Store, head: Head) -> int:
    version = save_model(store, head.eval(), {}, parent="v0")
    record = store.model(version).record
    folder = store.path / "models" / version
    assert json.loads((folder / "model.json").read_text()) == record
    assert set(record["files"]) == {path.name for path in folder.iterdir()} - {"model.json"}
    return record["format"]


def opened(names: list[str], heads: int = 2) -> Head:
    head = Head(32, heads=heads)
    for name in names:
        PARTS[name][1](head)
    return head


@pytest.mark.parametrize("name", PARTS)
def test_each_part_by_itself_has_its_format(store: Store, name: str) -> None:
    assert format_of(store, opened([name])) == PARTS[name][0]


def test_of_several_parts_the_newest_counts(store: Store) -> None:
    order = ["weighting", "memory", "output", "excitation", "lending", "second stage"]
    for count in range(2, len(order) + 1):
        assert format_of(store, opened(order[:count])) == PARTS[order[count - 1]][0]


@pytest.mark.parametrize(
    ("heads", "side", "number"), [(1, "mlp", 7), (1, "low-rank", 7), (2, "mlp", 7), (2, None, 1)]
)
def test_a_query_side_that_is_not_the_default_is_a_format(
    store: Store, heads: int, side: str | None, number: int
) -> None:
    assert format_of(store, Head(32, heads=heads, query_side=side)) == number


@pytest.mark.parametrize("name", [name for name in PARTS if name != "score"])
def test_both_forms_have_every_part(store: Store, name: str) -> None:
    head = opened([name])
    with torch.no_grad():
        for parameter in (head.query_in, head.key_delta, head.mixture_logits, head.keyword_weight):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    version = save_model(store, head.eval(), {}, parent="v0")
    module, fixed = load_head(store, version), load_fixed_head(store, version)
    assert fixed is not None
    assert not module.training
    for loaded in (module, fixed):
        for number in ("keyword_weight", "log_temperature", "mixture_logits", "bm25"):
            expected, found = getattr(head, number), getattr(loaded, number)
            assert (found is None) == (expected is None), number
            if expected is not None:
                np.testing.assert_allclose(torch.as_tensor(found).detach(), expected.detach())
        assert (loaded.memory is None) == (head.memory is None)
        if head.memory is not None:
            assert loaded.memory.texts == ["a", "b"]
            assert loaded.memory.setting == pytest.approx(head.memory.setting)
        assert (loaded.second_stage is None) == (head.second_stage is None)
        if head.second_stage is not None:
            assert loaded.second_stage.reranker == head.second_stage.reranker
            assert loaded.second_stage.has_features
        assert (loaded.excitation is None) == (head.excitation is None)
    with torch.no_grad():
        np.testing.assert_allclose(module.queries(QUERIES), head.queries(QUERIES), atol=1e-6)
        np.testing.assert_allclose(fixed.queries(QUERIES.numpy()), head.queries(QUERIES), atol=1e-5)
    assert (module.output is None) == (head.output is None)


@pytest.mark.parametrize("side", ["linear", "low-rank", "mlp", None])
def test_a_head_of_one_query_in_numpy_has_its_query_side(store: Store, side: str | None) -> None:
    head = Head(32, query_side=side)
    with torch.no_grad():
        for parameter in head.query_parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    version = save_model(store, head.eval(), {}, parent="v0")
    fixed = load_fixed_head(store, version)
    assert fixed is not None
    with torch.no_grad():
        np.testing.assert_allclose(fixed.queries(QUERIES.numpy()), head.queries(QUERIES), atol=1e-5)


def test_the_untrained_head_needs_no_file(store: Store) -> None:
    assert load_head(store, "v0").encoder_dim == 32
    fixed = load_fixed_head(store, "v0")
    assert fixed is not None
    assert fixed.encoder_dim == 32
    assert load_learned_queries(store, "v0") is None


def test_learned_queries_are_kept_with_the_head(store: Store) -> None:
    version = save_model(store, Head(32), {}, parent="v0", learned_from=LEARNED)
    loaded = load_learned_queries(store, version)
    assert loaded is not None
    assert loaded.texts == LEARNED.texts
    assert load_learned_queries(store, save_model(store, Head(32), {}, parent="v0")) is None


def test_a_given_memory_is_taken_and_not_read_again(store: Store) -> None:
    version = save_model(store, opened(["memory"]), {}, parent="v0")
    fixed = load_fixed_head(store, version)
    assert fixed is not None
    (store.path / "models" / version / "memory.safetensors").unlink()
    assert load_head(store, version, fixed.memory).memory is not None
    with pytest.raises(CorruptData):
        load_head(store, version)


@pytest.mark.parametrize("number", [0, 18, None, "1"])
@pytest.mark.parametrize("load", [load_head, load_fixed_head])
def test_other_formats_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, load: Any, number: Any
) -> None:
    version = save_model(store, Head(32), {}, parent="v0")
    registered = store.model(version)
    registered.record["format"] = number
    monkeypatch.setattr(type(store), "model", lambda store, named: registered)
    message = f"model {version} has format {number}; this release reads 1 to 17"
    with pytest.raises(UnsupportedFormat, match=message):
        load(store, version)


@pytest.mark.parametrize("load", [load_head, load_fixed_head, load_learned_queries])
def test_an_unknown_version_and_a_changed_file_are_named(store: Store, load: Any) -> None:
    with pytest.raises(ModelNotFound):
        load(store, "v9")
    version = save_model(store, Head(32), {}, parent="v0", learned_from=LEARNED)
    name = files.LEARNED_NAME if load is load_learned_queries else files.HEAD_NAME
    file = store.path / "models" / version / name
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(CorruptData, match=name):
        load(store, version)


def stage_of_an_earlier_release(store: Store, tensors: dict[str, np.ndarray], number: int) -> str:
    """A version whose second stage has these further tensors."""
    version = save_model(store, Head(32).reranking(stage()).eval(), {}, parent="v0")
    path = store.path / "models" / version / files.HEAD_NAME
    further = {f"second_stage.{name}": tensor for name, tensor in tensors.items()}
    path.write_bytes(save({**load(path.read_bytes()), **further}))
    size, sha256 = file_digest(path)
    described = {files.HEAD_NAME: {"bytes": size, "sha256": sha256}}
    store.add_to_record(version, {"format": number, "files": described})
    return version


@pytest.mark.parametrize("number", [11, 14, 15, 16])
def test_a_stage_of_an_earlier_release_is_read_where_what_went_changes_no_order(
    store: Store, number: int
) -> None:
    zeros = {"token_delta": np.zeros((4, 4), np.float32), "field_weights": np.zeros(2, np.float32)}
    version = stage_of_an_earlier_release(store, zeros, number)
    assert files.served_version(store, version) == version
    for load_it in (load_head, load_fixed_head):
        loaded: Any = load_it(store, version)
        assert loaded.second_stage.has_features


@pytest.mark.parametrize(
    ("name", "shape", "option"),
    [("token_delta", (4, 4), "--token-matrix"), ("field_weights", (2,), "--monotone-fields")],
)
def test_a_stage_of_an_earlier_release_with_a_part_that_went_is_not_served(
    store: Store, name: str, shape: tuple[int, ...], option: str
) -> None:
    version = stage_of_an_earlier_release(store, {name: np.full(shape, 0.1, np.float32)}, 11)
    assert files.served_version(store, version) == "v0"
    assert option in str(files.retired_part(store, store.model(version)))
    for load_it in (load_head, load_fixed_head):
        with pytest.raises(Gone, match=version):
            load_it(store, version)
    path = store.path / "models" / version / files.HEAD_NAME
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(CorruptData, match=files.HEAD_NAME):  # whatever it says
        load_head(store, version)


def test_what_cannot_be_saved_leaves_no_version(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="documents without the encoder that they were encoded by"):
        save_model(store, Head(32), {}, parent="v0", documents=object())  # type: ignore[arg-type]
    assert store.models() == []
    assert save_model(store, Head(32), {}, parent="v0") == "v1"


def test_the_way_back_begins_with_the_untrained_version(store: Store) -> None:
    for _ in range(2):
        save_model(store, Head(32), {}, parent="v0")
    assert files.way_back(store) == ["v0"]
    with pytest.raises(Conflict, match="v0 answers, and nothing answered before it; promote a version with:"):
        files.before_live(store)
    for version in ("v1", "v2"):
        store.promote(version)
    assert files.way_back(store) == ["v0", "v1", "v2"]
    assert files.before_live(store) == "v1"
