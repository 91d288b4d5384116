"""Monotone fields: fitted with their sign, served, explained by the score's parts, stored with the model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dsearch.attention.late_interaction import FEATURES
from dsearch.attention.retrieval.monotone import parse_fields
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.queries import tokens_of
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.service.tasks.jobs import _written  # pyright: ignore[reportPrivateUsage]
from dsearch.service.tasks.results import register_made
from dsearch.training import run_training
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.finetune.lists import CandidateLists, lists_of
from dsearch.training.finetune.second_stage import FitMethod, fitted, stage_with
from dsearch.training.options import scaled_fields
from dsearch.types import Document

ZERO = torch.zeros(1 + len(FEATURES))


@pytest.fixture
def dated(engine: SearchEngine) -> tuple[Collection, dict[str, str], dict[str, dict[str, float]]]:
    """Documents in threes of the same words; the newest of each three answers."""
    documents = [
        Document(id=f"d{i}", title=f"a{i // 3}", text="the same", metadata={"day": f"2020-01-{1 + i % 3:02}"})
        for i in range(60)
    ]
    collection = engine.create("dated")
    collection.ingest([*documents, Document(id="undated", text="the same")], second_stage=True)
    queries = {f"q{i}": f"a{i % 20} same" for i in range(48)}
    return collection, queries, {f"q{i}": {f"d{3 * (i % 20) + 2}": 1.0} for i in range(48)}


def lists_with(collection: Collection, examples: Examples, text: str) -> CandidateLists:
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    fields = scaled_fields(text, examples.snapshot)
    return lists_of(examples, tokens, collection.head("v0"), range(len(examples)), fields)


@pytest.mark.parametrize(("text", "rises"), [("+day", True), ("day", True), ("-day", False)])
def test_a_weight_has_its_sign_or_is_nothing(dated: tuple, text: str, rises: bool) -> None:
    collection, queries, judgements = dated
    examples = examples_from_judgements(collection, queries, judgements)
    weights = fitted(lists_with(collection, examples, text), FitMethod(pull=0.1))
    assert len(weights) == 2 + len(FEATURES)
    assert (weights[-1] > 1e-4) == rises
    assert weights[-1] >= 0
    strong = fitted(lists_with(collection, examples, text), FitMethod(pull=1e6))
    assert strong.abs().max() < 1e-3


def test_a_newer_document_is_ranked_by_its_day(dated: tuple) -> None:
    """As fitted, after a restart of the model, and for a document written since."""
    collection, queries, judgements = dated
    examples = examples_from_judgements(collection, queries, judgements)
    fields = scaled_fields("+day", examples.snapshot)
    weights = torch.cat([ZERO, torch.tensor([0.4])])
    stage = stage_with(examples.snapshot, weights, None, fields)
    version = collection.add_model(collection.head("v0").reranking(stage), {"scope": "test"})
    collection.promote(version)
    assert collection.store.model(version).record["format"] == 14
    assert collection.stored_head(version).second_stage.fields == fields
    lists = lists_with(collection, examples, "+day")
    (expected,) = collection.ids_at(examples.snapshot, lists.ranked(weights)[:1])
    hits = collection.search(examples.texts[0], limit=10, explain=True).hits
    assert [hit.id for hit in hits] == expected[:10]
    for hit in hits:
        parts = hit.explain
        assert parts is not None
        total = parts.dense[0] + parts.keyword[0] + parts.second_stage
        assert total == pytest.approx(hit.score, abs=1e-5)
    newest = Document(id="newest", title="a3", text="the same", metadata={"day": "2020-01-03"})
    collection.ingest([newest])
    found = {hit.id: hit.explain for hit in collection.search("a3 same", limit=60, explain=True).hits}
    parts = {id: explain.second_stage for id, explain in found.items() if explain is not None}
    assert parts["newest"] == pytest.approx(parts["d11"]) == pytest.approx(0.2, abs=0.02)
    assert parts["d9"] == pytest.approx(-0.2, abs=0.02)
    assert parts["undated"] == pytest.approx(0.0, abs=1e-6)


def test_a_task_keeps_the_fields_of_its_stage(dated: tuple, tmp_path: Path) -> None:
    collection, queries, judgements = dated
    job = TrainingJob(
        queries=queries, judgements=judgements, epochs=2, memory=False, tune=False, monotone_fields="+day"
    )
    learned = run_training(collection, job)
    stage = learned.second_stage
    assert stage is not None
    assert stage.stage.fields
    gate = dataclasses.replace(stage.gate, verdict="passed")
    passing = dataclasses.replace(stage, gate=gate, record={**stage.record, "gate": gate.to_dict()})
    outcome = json.loads(json.dumps(_written(tmp_path, dataclasses.replace(learned, second_stage=passing))))
    register_made(tmp_path, outcome, collection, promote=True, accept=False, task="t1")
    served = collection.head(collection.live_model).second_stage
    assert served is not None
    assert served.fields == stage.stage.fields
    assert np.isclose(served.field_weights.item(), stage.stage.field_weights.item())  # type: ignore[union-attr]
    assert "day" in learned.summary(learned.register(collection, job))["second_stage"]["fields"]


@pytest.mark.parametrize("text", ["+none", "+title"])
def test_fields_that_order_nothing_are_refused(dated: tuple, text: str) -> None:
    collection, queries, judgements = dated
    job = TrainingJob(queries=queries, judgements=judgements, monotone_fields=text)
    with pytest.raises(InvalidRequest, match="do not differ"):
        run_training(collection, job)


def test_shapes_of_fields() -> None:
    assert parse_fields("+day")[0].of([]).shape == (0,)
