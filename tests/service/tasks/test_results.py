"""What a task learned goes through a folder: every part comes back, of documents those still there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.service.service_fakes import DIMENSION

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, EncodedDocuments
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.service.tasks import results
from dsearch.service.tasks.results import (
    read_encoded,
    read_made,
    read_rows,
    register_learned,
    write_encoded,
    write_learned,
    write_made,
    write_rows,
)
from dsearch.store import MemoryRow, Passages
from dsearch.training import Candidate, JobResult, judge
from dsearch.training.candidate import RowsCandidate, StageCandidate
from dsearch.types import Document


def head_of(seed: int, *, memory: bool = False, strength: float = 0.5) -> Head:
    head = Head(DIMENSION)
    with torch.no_grad():
        head.query_delta.copy_(torch.randn(1, DIMENSION, DIMENSION, generator=torch.manual_seed(seed)))
    if not memory:
        return head
    rows = np.eye(2, DIMENSION, dtype=np.float32)
    two = np.arange(2)
    return head.remembering(QueryMemory(rows, rows, two, two, two, np.ones(2, np.float32), strength=strength))


def test_every_part_of_a_model_comes_back(papers: Collection, tmp_path: Path) -> None:
    change = EncoderChange(
        EncoderTraining("lora", 4, 8), {"layer.A": torch.eye(2), "layer.B": torch.ones(2, 2)}
    )
    learned_from = LearnedQueries(None, np.full((2, DIMENSION), 2, np.float32))
    tuned = Candidate(head=head_of(1), record={"scope": "tune"})
    trained = Candidate(
        head=head_of(0, memory=True), record={}, encoder=change, learned_from=learned_from, tuned=tuned
    )
    read = read_made(tmp_path, write_made(tmp_path, trained), papers)
    assert torch.equal(read.head.query_delta, trained.head.query_delta)
    assert read.tuned is not None
    assert torch.equal(read.tuned.head.query_delta, tuned.head.query_delta)
    assert read.tuned.record == {"scope": "tune"}
    assert read.head.memory is not None
    assert read.tuned.head.memory is None
    assert (len(read.head.memory), read.head.memory.setting[0]) == (2, 0.5)
    assert read.encoder is not None
    assert read.encoder.training == change.training
    assert {name: tensor.tolist() for name, tensor in read.encoder.tensors.items()} == {
        name: tensor.tolist() for name, tensor in change.tensors.items()
    }
    assert read.learned_from is not None
    assert read.learned_from.states is not None
    assert read.learned_from.states[0, 0] == 2
    assert read.documents is None
    alone = Candidate(head=head_of(3), record={})
    read = read_made(tmp_path, write_made(tmp_path, alone), papers)  # into the folder of the other one
    assert (read.encoder, read.documents, read.learned_from, read.tuned) == (None,) * 4
    assert read.head.memory is None


def test_each_head_has_the_memory_of_its_own(papers: Collection, tmp_path: Path) -> None:
    """The tuned search may answer alone, without what the trained head has learned."""
    searched = Candidate(head=head_of(1, memory=True, strength=0.25), record={})
    trained = Candidate(head=head_of(0, memory=True), record={}, tuned=searched)
    read = read_made(tmp_path, write_made(tmp_path, trained), papers)
    assert read.tuned is not None
    memories = read.head.memory, read.tuned.head.memory
    assert [memory and memory.setting[0] for memory in memories] == [0.5, 0.25]


def test_rows_of_a_memory_come_back_in_their_order(tmp_path: Path) -> None:
    states = np.eye(3, 8, dtype=np.float32)
    rows = [
        MemoryRow("", states[0], {7: 1.0, 3: -0.2}, "clicks", "web"),
        MemoryRow("river", states[1], {5: 0.5}),
        MemoryRow("", states[2], {1: 1.0, 2: 0.25, 9: -0.2}, "clicks", ""),
    ]
    write_rows(tmp_path, rows)
    read = read_rows(tmp_path)
    for row, of in zip(rows, read, strict=True):
        assert (of.text, of.source, of.key, [*of.grades.items()]) == (
            row.text,
            row.source,
            row.key,
            [*row.grades.items()],
        )
        np.testing.assert_array_equal(of.state, row.state)


@pytest.mark.parametrize("built", [False, True])
def test_documents_are_those_that_are_still_there(papers: Collection, tmp_path: Path, built: bool) -> None:
    """One is deleted, one replaced and one new since they were encoded; a long one has its passages."""
    state = papers.snapshot
    ids = papers.ids_at(state, np.arange(state.positions)[None])[0]
    visible = [ids[at] for at in state.visible().tolist()]
    embeddings = np.random.default_rng(0).normal(size=(state.positions, DIMENSION)).astype(np.float32)
    gone, replaced, long, short = visible[3], visible[5], visible[7], visible[9]
    spans = np.array([[0, 2], [2, 4], [4, 6]])
    further = {
        ids.index(id): Passages(spans + shift, np.full((2, DIMENSION), shift, np.float32))
        for shift, id in enumerate((gone, long), start=1)
    }
    write_encoded(tmp_path, EncodedDocuments(state, embeddings, further))
    papers.delete([gone])
    papers.upsert([Document(replaced, "other words"), Document("new", "river")])
    if built:  # a generation without those that are gone
        papers.refresh()
    read = read_encoded(tmp_path, present := papers.snapshot)
    left = papers.ids_at(read.state, read.state.visible()[None])[0]
    assert sorted(left) == sorted({*visible} - {gone, replaced})

    def place(id: str) -> int:
        return int(present.positions_of(np.array([papers.store.rows_of([id])[id]]))[0])

    for id in (long, short):
        np.testing.assert_array_equal(read.embeddings[place(id)], embeddings[ids.index(id)])
    assert not read.embeddings[place("new")].any()
    assert {*read.further} & {*read.state.visible().tolist()} == {place(long)}
    np.testing.assert_array_equal(read.further[place(long)].spans, spans + 2)
    assert (read.further[place(long)].embeddings == 2).all()


def test_what_was_deleted_is_not_written(papers: Collection, tmp_path: Path) -> None:
    """A purge reaches the collection's files, not those of a run."""
    papers.delete(["d001"])
    state = papers.snapshot
    embeddings = np.ones((state.positions, DIMENSION), np.float32)
    write_encoded(tmp_path, EncodedDocuments(state, embeddings))
    written = load_file(tmp_path / results.DOCUMENTS_NAME)
    assert written["rows"].tolist() == state.rows(state.visible()).tolist()
    assert len(written["embeddings"]) == len(written["rows"]) < state.positions


def learned(**more: Any) -> JobResult:
    """Result of a training whose gate had too few queries, with more that was judged by itself."""
    record = {"scope": "head", "gate": judge(None, None).to_dict()}
    head = Candidate(head=head_of(0), record=record)
    return JobResult(head, "v0", 3, {}, **more)


@pytest.mark.parametrize("promote", [True, False])
@pytest.mark.parametrize("verdict", ["passed", "refused"])
def test_a_second_stage_goes_live_by_its_own_verdict(
    papers: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, promote: bool
) -> None:
    from dsearch.training import registry

    about = {"base": "head", "way": {}, "strength": 0.5, "features": {}}
    record = {"second_stage": about, "gate": {"verdict": verdict, "reason": "why"}}
    stage = StageCandidate(stage=SecondStage(strength=0.5), record=record)
    added: list[Any] = []
    monkeypatch.setattr(
        registry, "register_second_stage", lambda _, of, about, before: added.append((of, about)) or before
    )
    outcome = write_learned(tmp_path, learned(second_stage=stage))
    assert outcome["second_stage"] == record
    assert (tmp_path / "second-stage.safetensors").exists() == (verdict == "passed")
    told = register_learned(tmp_path, outcome, papers, promote=promote, accept=False, task="t1")
    assert papers.live_model == "v0"
    assert papers.store.model(told["trained"]).record["task"] == "t1"
    assert len(added) == (verdict == "passed" and promote)
    for of, about in added:
        assert of.strength.item() == 0.5
        assert about["task"] == "t1"


@pytest.mark.parametrize("promote", [True, False])
@pytest.mark.parametrize("verdict", ["passed", "refused"])
def test_outcomes_answer_only_where_a_training_may(
    papers: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, promote: bool
) -> None:
    from dsearch.training import registry

    registered: list[Any] = []
    monkeypatch.setattr(
        registry,
        "register_outcomes",
        lambda _, rows, outcomes, before: registered.append((len(rows), outcomes)) or before,
    )
    record = {"gate": {"verdict": verdict}}
    row = MemoryRow("", np.eye(1, 8, dtype=np.float32)[0], {7: 1.0}, "clicks", "web")
    outcome = write_learned(tmp_path, learned(outcomes=RowsCandidate(rows=[row], record=record)))
    register_learned(tmp_path, outcome, papers, promote=promote, accept=False, task="t1")
    assert registered == ([(1, record)] if promote and verdict == "passed" else [])


def test_values_of_a_field_leave_the_search_as_it_is(papers: Collection, tmp_path: Path) -> None:
    """They become a version like the live one, as in the process of the caller."""
    live = papers.add_model(head_of(1), {"scope": "head"})
    papers.promote(live)
    values = head_of(0)
    with torch.no_grad():
        values.value_delta.fill_(0.5)
    gate = {**judge(None, None).to_dict(), "verdict": "passed", "reason": "better"}
    result = Candidate(head=values, record={"scope": "values", "live_at_start": live, "gate": gate})
    outcome = write_learned(tmp_path, JobResult(result, live, 12, {}))
    told = register_learned(tmp_path, outcome, papers, promote=True, accept=False, task="t1")
    assert told["model"] == papers.live_model != live
    head = papers.head(papers.live_model)
    assert torch.equal(head.query_delta, papers.head(live).query_delta)
    assert torch.equal(head.value_delta, values.value_delta)
