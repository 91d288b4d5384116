"""Answers say whether their first hit is right: by judgements in per cent, by made queries in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.patience import LATEST_S

from dsearch.attention.retrieval.head import Head
from dsearch.client import wire
from dsearch.corpus.made_queries import EVERYDAY, nonsense_queries
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.engine.models.confidence import FILE_NAME, RECORDED
from dsearch.evaluation.confidence import AnsweredQueries
from dsearch.jobs import EvaluationJob, TrainingJob
from dsearch.service import create_app, deadline
from dsearch.training import Examples, confidence, examples_from_judgements, run_evaluation, run_training
from dsearch.training.confidence import (
    calibrate_by_documents,
    calibrate_by_judgements,
    made_queries,
    ranked,
    ranked_examples,
    with_calibration,
)
from dsearch.types import Confidence, Document

COUNT = 60


def _documents() -> list[Document]:
    draw = np.random.default_rng(0)
    words = [f"word{n}" for n in range(150)]
    return [Document(f"d{n}", " ".join(draw.choice(words, size=14))) for n in range(COUNT)]


def _judged() -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Questions of three words of a document; of a quarter of them another document is the answer."""
    texts, judgements = {}, {}
    for number, document in enumerate(_documents()):
        texts[f"q{number}"] = " ".join(document.text.split()[:3])
        right = number if number % 4 else (number + 1) % COUNT
        judgements[f"q{number}"] = {f"d{right}": 1.0}
    return texts, judgements


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def engine(home: Path) -> Iterator[SearchEngine]:
    with SearchEngine(home, encoder=HashingEncoder) as opened:
        yield opened


@pytest.fixture
def collection(engine: SearchEngine) -> Collection:
    made = engine.create("t")
    made.ingest(_documents())
    return made


def _confidence(collection: Collection, query: str, **options: str) -> Confidence | None:
    return collection.search(query, **options).confidence  # type: ignore[arg-type]


def test_made_queries_give_words_and_refuse_nonsense(engine: SearchEngine, collection: Collection) -> None:
    words = " ".join(_documents()[3].text.split()[:6])
    assert _confidence(collection, words) is None
    known = calibrate_by_documents(collection)
    assert known is not None
    said = _confidence(collection, words)
    assert said is not None
    assert (said.verdict, said.probability, said.fitted_on) == ("likely", None, "documents")
    nonsense = [_confidence(collection, query) for query in nonsense_queries(20, seed=7)]
    assert sum(one is not None and one.verdict == "nothing fits" for one in nonsense) >= 18
    assert _confidence(collection, words, mode="keyword") is None
    assert calibrate_by_documents(collection) == known  # nothing changed
    collection.ingest([Document(f"e{n}", f"other{n} thing{n} more{n} words{n} here{n}") for n in range(20)])
    renewed = calibrate_by_documents(collection)
    assert renewed is not None
    assert renewed.documents == COUNT + 20
    collection.delete([f"d{n}" for n in range(30)])
    renewed = calibrate_by_documents(collection)
    assert renewed is not None
    assert renewed.documents == COUNT - 10


def test_right_is_a_query_whose_first_hit_answers_it(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other right hits among the first ten count for the floor alone."""
    snapshot, head = collection.snapshot, collection.head("v0")
    texts = [document.text for document in _documents()[:4]]
    states = collection.encoder.encode_queries(texts)
    found = SearchLayer(snapshot, head).ranked(torch.as_tensor(states), texts)
    first, second, beyond = found.positions[:, 0], found.positions[:, 1], found.positions[:, 11]
    relevant = [first[:1], second[1:2], np.array([first[2], second[2]]), beyond[3:4]]
    answered = ranked(snapshot, head, texts, states, relevant)
    assert answered.right.tolist() == [True, False, True, False]
    scores = found.scores.numpy()
    expected = [scores[0, 0], scores[1, 1], scores[2, 0], scores[2, 1]]
    assert answered.right_scores.tolist() == pytest.approx(expected)
    monkeypatch.setattr(confidence, "_AT_A_TIME", 2)
    for one, other in zip(answered, ranked(snapshot, head, texts, states, relevant), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_judged_query_is_right_by_any_of_its_answers(collection: Collection) -> None:
    """Not by what is judged as wrong."""
    text = _documents()[7].text
    judged = {"q": {"d3": 1.0, "d7": 2.0}, "r": {"d7": 0.0, "d3": 1.0}}
    examples = examples_from_judgements(collection, {"q": text, "r": text}, judged)
    assert ranked_examples(examples, collection.head("v0")).right.tolist() == [True, False]


def test_judgements_give_a_probability_that_stays(engine: SearchEngine, collection: Collection) -> None:
    texts, judgements = _judged()
    run_evaluation(collection, EvaluationJob(texts, judgements))
    said = _confidence(collection, texts["q1"])
    assert said is not None
    assert said.fitted_on == "judgements"
    assert said.probability is not None
    assert said.queries == COUNT
    known = collection.calibrations.of("v0")
    assert calibrate_by_documents(collection) == known  # queries from documents do not replace it
    engine.create("u").ingest(_documents()[:20])
    run_evaluation(engine.collection("u"), EvaluationJob(texts, judgements))
    answer = _confidence(engine.collection("u"), texts["q1"])
    assert answer is None or answer.fitted_on == "documents"  # too few of its documents are judged


def test_test_judgements_beside_training_ones_calibrate_nothing(collection: Collection) -> None:
    texts, judgements = _judged()
    run_evaluation(collection, EvaluationJob(texts, judgements, training=judgements))
    assert collection.calibrations.of("v0") is None


def test_queries_that_were_trained_on_are_scored_apart(collection: Collection) -> None:
    """In every report of HTTP, page and Python, with a warning; and they calibrate nothing by themselves."""
    texts, judgements = _judged()
    half = {query: of for query, of in judgements.items() if int(query[1:]) < 30}
    job = TrainingJob(queries=texts, judgements=half, epochs=2, accept=True)
    version = run_training(collection, job).register(collection, job).model
    systems = [{"model": "v0"}, {"model": version}]
    report = run_evaluation(collection, EvaluationJob(texts, judgements, systems=systems))
    assert f"30 of these {COUNT} queries were trained on (30 by {version})" in report["warning"]
    groups = {line["group"]: line["queries"] for line in report["lines"]}
    assert groups == {"all": COUNT, "trained on": 30, "not trained on": COUNT - 30}
    compared = {group["name"]: group["queries"] for group in report["comparison"]["groups"]}
    assert compared["trained on"] == compared["not trained on"] == 30
    renamed = {f"other{query}": f"  {text.upper()}" for query, text in texts.items()}
    again = EvaluationJob(renamed, {f"other{query}": of for query, of in half.items()}, model=version)
    assert "none of them shows how well new queries" in run_evaluation(collection, again)["warning"]
    assert calibrate_by_judgements(collection, version, texts, judgements) is None  # half are too few
    untrained = EvaluationJob(texts, judgements, systems=[{"model": "v0", "mode": "dense"}])
    assert run_evaluation(collection, untrained)["warning"] is None


def test_a_damaged_file_costs_the_confidence_alone(collection: Collection) -> None:
    calibrate_by_documents(collection)
    file = collection.store.path / FILE_NAME
    for content in ("{", "[]", '{"format": 9, "versions": {}}', '{"format": 1, "versions": {"v0": {}}}'):
        file.write_text(content)
        answer = collection.search("word1 word2")
        assert answer.hits
        assert answer.confidence is None
    file.unlink()
    assert calibrate_by_documents(collection) is not None
    assert _confidence(collection, "word1 word2") is not None


def test_a_training_keeps_it_with_the_version(collection: Collection) -> None:
    texts, judgements = _judged()
    job = TrainingJob(queries=texts, judgements=judgements, epochs=2, accept=True)
    learned = run_training(collection, job)
    assert learned.result.record[RECORDED]["source"] in ("judgements", "documents")
    registered = learned.register(collection, job)
    said = _confidence(collection, texts["q1"], model=registered.model)
    assert said is not None
    assert said.fitted_on == collection.store.model(registered.model).record[RECORDED]["source"]
    later = collection.add_model(
        collection.head(registered.model), {"scope": "remember"}, parent=registered.model
    )
    assert collection.calibrations.of(later) == collection.calibrations.of(registered.model)


def test_a_training_encodes_made_queries_once(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head and the tuned search are calibrated by the same ones."""
    calls: list[list[str]] = []
    encode = HashingEncoder.encode_queries

    def noted(self: HashingEncoder, texts: list[str]) -> np.ndarray:
        calls.append(list(texts))
        return encode(self, texts)

    monkeypatch.setattr(HashingEncoder, "encode_queries", noted)
    texts, judgements = _judged()
    learned = run_training(collection, TrainingJob(queries=texts, judgements=judgements, epochs=1))
    assert learned.result.tuned is not None
    records = [learned.result.record[RECORDED], learned.result.tuned.record[RECORDED]]
    assert records[0]["documents"] == records[1]["documents"] == COUNT
    assert sum(EVERYDAY[0] in call for call in calls) == 1


def test_a_version_is_calibrated_by_its_own_encoder(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its judged queries are ranked as its encoder sees them."""
    collection = engine.create("t")
    collection.ingest(_documents(), second_stage=True)
    other = HashingEncoder()
    with torch.no_grad():
        other.weight.copy_(torch.eye(32).roll(1, 0))
    monkeypatch.setattr(type(collection), "encoder_of", lambda self, version: other)
    seen: list[np.ndarray] = []
    real = confidence.ranked_examples

    def noted(examples: Examples, head: Head) -> Any:
        seen.append(examples.states)
        return real(examples, head)

    monkeypatch.setattr(confidence, "ranked_examples", noted)
    assert calibrate_by_judgements(collection, "v0", *_judged()) is not None
    texts = examples_from_judgements(collection, *_judged()).texts
    (states,) = seen
    np.testing.assert_allclose(states, other.encode_queries(texts))


def test_queries_are_made_as_the_encoder_of_the_version_sees_them(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HashingEncoder()
    with torch.no_grad():
        other.weight.copy_(torch.eye(32).roll(1, 0))
    monkeypatch.setattr(type(collection), "encoder_of", lambda self, version: other)
    for version, encoder in ((None, collection.encoder), ("v0", other)):
        made = made_queries(collection, version=version)
        assert made is not None
        np.testing.assert_array_equal(made.states, encoder.encode_queries(made.texts))


def test_nothing_answers_nonsense_and_everyday_questions_that_score_low(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An everyday question that scores like a right one may have an answer here; nonsense never has."""
    given: list[tuple[AnsweredQueries, np.ndarray]] = []
    real = confidence.calibrate

    def noted(drawn: AnsweredQueries, unanswered: np.ndarray, *more: Any, **named: Any) -> Any:
        given.append((drawn, unanswered))
        return real(drawn, unanswered, *more, **named)

    monkeypatch.setattr(confidence, "calibrate", noted)
    made = made_queries(collection)
    assert made is not None
    texts = list(made.texts)
    texts[len(made.relevant)], texts[-1] = _documents()[3].text, _documents()[5].text
    states = collection.encoder.encode_queries(texts)
    assert confidence.calibration_of(
        collection, collection.head("v0"), by=made._replace(texts=texts, states=states)
    )
    ((drawn, unanswered),) = given
    bound = float(np.quantile(drawn.right_scores, 0.25))
    assert (unanswered[: confidence.NONSENSE, 0] >= bound).sum() >= 1
    assert (unanswered[confidence.NONSENSE :, 0] < bound).all()
    assert len(unanswered) == confidence.NONSENSE + len(EVERYDAY) - 1


def test_what_has_an_encoder_or_documents_of_its_own_is_calibrated_later(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By queries that its own encoder has seen, over its own documents."""
    change: Any = object()
    record = {"scope": "query"}
    assert with_calibration(record, collection, collection.head("v0"), None, change) == record
    assert RECORDED in with_calibration(record, collection, collection.head("v0"), None)
    monkeypatch.setattr(type(collection), "has_documents_of", lambda *_: True)
    assert calibrate_by_judgements(collection, "v0", *_judged()) is None


def test_made_queries_are_answered_by_the_documents_that_they_are_made_of(collection: Collection) -> None:
    """Those that are there: with deleted ones before them their places are others than their numbers."""
    collection.delete([f"d{number}" for number in range(20)])
    made = made_queries(collection)
    assert made is not None
    assert COUNT - 25 < len(made.relevant) <= COUNT - 20
    documents = {document.id: set(document.text.split()) for document in _documents()[20:]}
    for text, at in zip(made.texts, made.relevant, strict=False):
        [[id]] = collection.ids_at(made.snapshot, at[None])
        assert set(text.split()) <= documents[id]


def test_a_fifth_of_the_documents_may_come_or_go(collection: Collection) -> None:
    known = calibrate_by_documents(collection)
    fifth = COUNT // 5
    collection.ingest([Document(f"e{number}", f"other{number} thing{number}") for number in range(fifth)])
    assert calibrate_by_documents(collection) == known
    collection.ingest([Document("one more", "of them")])
    assert calibrate_by_documents(collection) != known


def test_a_calibration_holds_until_there_is_another(collection: Collection) -> None:
    """Where documents have become too short to make queries of, that of before is better than none."""
    known = calibrate_by_documents(collection)
    assert known is not None
    collection.delete([document.id for document in _documents()])
    collection.ingest([Document(f"short{number}", f"word{number}") for number in range(20)])
    assert calibrate_by_documents(collection) == known


def until_calibrated(client: TestClient, app: FastAPI) -> None:
    until = time.monotonic() + LATEST_S
    while app.state.service._calibrating:
        assert time.monotonic() < until
        client.get("/healthz")


def test_http_has_it_and_an_upload_brings_it(home: Path) -> None:
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        engine.create("t")
        app = create_app(engine)
        app.state.service.calibrate_after_s = 0.0
        with TestClient(app, base_url="http://127.0.0.1") as client:
            body = [{"id": one.id, "text": one.text} for one in _documents()]
            assert client.put("/v1/collections/t/documents", json=body).status_code == 200
            until_calibrated(client, app)
            answer = client.post("/v1/collections/t/search", json={"query": "word1 word2 word3"}).json()
    assert set(answer["confidence"]) == {"verdict", "probability", "fitted_on", "queries", "floor"}
    assert isinstance(wire.search_result("word1", answer).confidence, Confidence)


def test_a_calibration_outlasts_the_request_that_wrote(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        engine.create("t")
        app = create_app(engine)
        app.state.service.calibrate_after_s = 0.0
        encoding = app.state.service.encoding
        run, deadlines = encoding.run, []

        async def noted(work: Callable[[], object]) -> object:
            deadlines.append(deadline.present())
            return await run(work)

        with TestClient(app, base_url="http://127.0.0.1") as client:
            body = [{"id": one.id, "text": one.text} for one in _documents()]
            monkeypatch.setattr(encoding, "run", noted)
            assert client.put("/v1/collections/t/documents", json=body).status_code == 200
            until_calibrated(client, app)
        assert deadlines[-1] is None
        assert engine.collection("t").calibrations.of("v0") is not None


def test_relevant_documents_that_are_not_stored_are_said(collection: Collection) -> None:
    """An unfinished index, or judgements of another corpus, would look like a bad search."""
    texts, judgements = _judged()
    first, second = list(judgements)[:2]
    elsewhere = judgements | {first: {"absent": 1}, second: {**judgements[second], "absent too": 1, "no": 0}}
    relevant = {id for of in elsewhere.values() for id, grade in of.items() if grade > 0}
    warning = run_evaluation(collection, EvaluationJob(texts, elsewhere))["warning"]
    assert warning == (
        f"2 of {len(relevant)} relevant documents are not in collection {collection.name!r} and count as not "
        f"retrieved; 1 of {COUNT} judged queries have none in it"
    )
