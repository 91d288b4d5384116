"""The second stage of a version of scope full: fitted by its own tokens, and part of the version."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.training.numbers import PAIRS, long_text

from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import Encoder
from dsearch.engine import Collection, EncodedDocuments, PassageOptions, SearchEngine
from dsearch.engine.models.documents import encoded_state
from dsearch.jobs import TrainingJob
from dsearch.training import FullOptions, examples_from_judgements, finetune_full
from dsearch.training.finetune import second_stage as stages
from dsearch.training.finetune.full import encoded_documents
from dsearch.training.finetune.second_stage import _over  # pyright: ignore[reportPrivateUsage]
from dsearch.training.finetune.stage_fit import FitMethod, lists_of
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, split_folds
from dsearch.training.loop.loop import Observer
from dsearch.training.run import run_training
from dsearch.types import Document

QUERIES = {f"q{i:02d}": f"question {i}" for i in range(PAIRS)}
QRELS = {f"q{i:02d}": {f"d{i}": 1.0} for i in range(PAIRS)}
OPTIONS = FullOptions(epochs=1, encoder_learning_rate=1e-2, held_out=2, query_keys=False)
FULL = sys.modules[finetune_full.__module__]


@pytest.fixture
def staged(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=lambda: tiny) as engine:
        collection = engine.create("staged")
        collection.ingest([Document(id=f"d{i}", text=long_text(i)) for i in range(PAIRS)], second_stage=True)
        collection.delete(["d3"])  # positions of the version's generation are others
        yield collection


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Answers, Answers]]:
    """Both gates let everything pass; few queries are enough, and the stage has a strength."""
    judged: list[tuple[Answers, Answers]] = []

    def passed(before: Answers, after: Answers, *gate: Gate, **options: object) -> GateReport:
        judged.append((before, after))
        always = Gate(alpha=0.99, margin=0.9, min_queries=1, harm=0.99)
        return judge(before, Answers(before.all + 0.1, before.seen, before.unseen + 0.1), always)

    for module in (FULL, stages):
        monkeypatch.setattr(module, "judge", passed)
    monkeypatch.setattr(stages, "MIN_QUERIES", 4)
    monkeypatch.setattr(stages, "chosen_method", lambda *_: FitMethod(strength=0.5))
    return judged


@pytest.mark.usefixtures("passing")
def test_a_version_brings_tokens_and_a_stage_of_its_own(staged: Collection) -> None:
    job = TrainingJob(queries=QUERIES, judgements=QRELS, scope="full", epochs=1)
    learned = run_training(staged, job)
    assert learned.second_stage is not None
    assert learned.second_stage.base == "head"
    registered = learned.register(staged, job)
    assert registered.live == registered.version == "v1"  # one version: no second one behind it
    state = staged.snapshot_for("v1")
    assert state.tokens is not None
    assert state.tokens.gather(np.arange(state.positions)).present.all()
    hit = staged.search("question 7", explain=True).hits[0]
    assert hit.explain is not None
    assert hit.explain.second_stage is not None
    assert learned.summary(registered)["second_stage"]["verdict"] == "passed"


def test_it_is_fitted_to_what_the_version_serves(
    staged: Collection, passing: list[tuple[Answers, Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The features of the fit are those of the registered version, by its own encoder and documents."""
    kept = []

    def seen(*arguments: object, **options: object) -> object:
        kept.append(lists_of(*arguments, **options))  # type: ignore[arg-type]
        return kept[-1]

    monkeypatch.setattr(stages, "lists_of", seen)
    examples = examples_from_judgements(staged, QUERIES, QRELS)
    trained = finetune_full(staged, examples, OPTIONS)
    assert trained.head.second_stage is not None
    version = staged.add_model(
        trained.head, trained.record, encoder=trained.encoder, documents=trained.documents
    )
    (lists,) = kept
    held_out = trained.record["held_out"]
    assert len(lists) == held_out
    # The first gate's answers of the trained model, and the second one's without the stage, are the same.
    (_, of_full), (without, _) = passing
    np.testing.assert_allclose(np.sort(without.all), np.sort(of_full.all), atol=1e-6)
    assert without.seen.sum() == of_full.seen.sum()
    state = staged.snapshot_for(version)
    strength = trained.head.second_stage.strength.item()
    assert strength == pytest.approx(0.5)
    ids = staged.ids_at(state, lists.positions)
    half = split_folds(examples, OPTIONS.held_out, OPTIONS.seed)[0]  # the lists have its queries in order
    for row, at in enumerate(half):
        hits = staged.search(examples.texts[at], model=version, explain=True, limit=PAIRS).hits
        terms = {hit.id: hit.explain.second_stage for hit in hits if hit.explain}
        for column, id in enumerate(ids[row]):
            wanted = strength * lists.features[row, column, 0].item()
            assert terms[id] == pytest.approx(wanted, abs=1e-4), (examples.texts[at], id)


@pytest.mark.usefixtures("passing")
def test_a_second_stage_that_was_refused_is_no_part_of_the_version(
    staged: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = SimpleNamespace(passed=False, stage=SecondStage())
    monkeypatch.setattr(FULL, "train_stage_of_full", lambda *_, **__: refused)
    few = {query: QRELS[query] for query in list(QRELS)[4:10]}
    trained = finetune_full(staged, examples_from_judgements(staged, QUERIES, few), OPTIONS)
    assert trained.second_stage is refused
    assert trained.head.second_stage is None


def test_positions_are_those_of_the_state_that_is_ranked(collection: Collection, tmp_path: Path) -> None:
    """Without deleted documents in it."""
    collection.delete(["d0", "d4"])
    snapshot = collection.snapshot
    judged, excluded = {"q": {"d7": 1.0}}, {"q": ["d2", "d9"]}
    examples = examples_from_judgements(collection, {"q": "apple"}, judged, excluded)
    documents = EncodedDocuments(snapshot, snapshot.embeddings(np.arange(snapshot.positions)))
    state = encoded_state(tmp_path / "state", collection.store, documents, collection.encoder.identity)
    over = _over(examples, state)
    assert over.hidden is not None
    assert examples.hidden is not None
    assert over.relevant[0][0].tolist() != examples.relevant[0][0].tolist()
    assert collection.ids_at(state, over.relevant[0][0][None])[0] == ["d7"]
    assert sorted(collection.ids_at(state, over.hidden[0][None])[0]) == ["d2", "d9"]


def test_passages_stay_with_their_documents_behind_deleted_ones(engine: SearchEngine) -> None:
    """Encoded by the encoder of the collection they are those that it has."""
    collection = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    collection.ingest([Document(f"d{i}", f"word{i} " * (1 + i % 3 * 20)) for i in range(9)])
    collection.delete(["d0", "d4"])
    state = collection.snapshot
    assert state.passages is not None
    documents = encoded_documents(collection, state, collection.encoder, Observer())
    kept = np.flatnonzero(np.isin(state.passages.owners, state.visible()))
    assert sorted(documents.further) == sorted({*state.passages.owners[kept].tolist()})
    encoded = [documents.further[at].embeddings for at in sorted(documents.further)]
    np.testing.assert_allclose(np.concatenate(encoded), state.passages.embeddings(kept), atol=1e-6)


@pytest.mark.usefixtures("passing")
def test_who_accepts_anything_gets_no_stage(staged: Collection) -> None:
    job = TrainingJob(queries=QUERIES, judgements=QRELS, scope="full", epochs=1, accept=True)
    learned = run_training(staged, job)
    assert learned.second_stage is None
    assert learned.result.head.second_stage is None


def test_without_tokens_there_is_none(tmp_path: Path, tiny: Encoder) -> None:
    with SearchEngine(tmp_path / "home", encoder=lambda: tiny) as engine:
        plain = engine.create("plain")
        plain.ingest([Document(id=f"d{i}", text=long_text(i)) for i in range(PAIRS)])
        trained = finetune_full(plain, examples_from_judgements(plain, QUERIES, QRELS), OPTIONS)
    assert trained.documents is not None
    assert trained.documents.tokens is None
    assert trained.second_stage is None
