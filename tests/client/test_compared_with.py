"""A verdict holds against one live version: if another became live meanwhile, the judged one is kept."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.service.apps import patient_app
from support.service.in_thread import served_in_thread
from support.service.service_fakes import WordEncoder, documents

import dsearch
from dsearch.client import Client, LocalEngine
from dsearch.engine import SearchEngine
from dsearch.jobs import ExampleScores, JudgedQueries
from dsearch.service.tasks.manager import TaskWork
from dsearch.training import saving

LOW = [0.1 * i for i in range(12)]
HIGH = [0.1 * i + 1 + 0.01 * i for i in range(12)]

pytestmark = pytest.mark.server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as opened:
        collection = opened.create("papers")
        collection.ingest(documents(20))
        collection.add_model(collection.head("v0"), {})  # v1, which becomes live in between
        yield opened


@pytest.fixture
def here(engine: SearchEngine) -> LocalEngine:
    return LocalEngine(engine)


def result_of(here: Client | LocalEngine, task: Any) -> dict[str, Any]:
    task = here.wait_for_task(task.id, every_s=0.01)
    assert task.state == "done", task.problem
    assert task.result is not None
    return task.result


def test_a_kept_version_is_judged_against_the_live_one_of_its_scores(
    here: LocalEngine, engine: SearchEngine
) -> None:
    collection = engine.collection("papers")
    kept = here.add_model("papers", here.head("papers", "v0")).model
    collection.promote("v1")
    outdated = result_of(here, here.judge_model("papers", kept, ExampleScores(LOW, HIGH, live="v0")))
    assert (outdated["live"], outdated["gate"]["verdict"]) == (False, "passed")
    assert outdated["reason"].count("not promoted, since v1 became live after the comparison with v0") == 1
    assert outdated["verdict"].endswith(
        "since another version became live after the comparison; compare the two."
    )
    record = collection.store.model(kept).record
    assert (record["compared_with"], record["outdated_by"]) == ("v0", "v1")
    assert "not promoted, since v1 became live" in record["verdict"]
    assert collection.live_model == "v1"
    # It can be judged again, by scores of the version that is live now.
    again = result_of(here, here.judge_model("papers", kept, ExampleScores(LOW, HIGH, live="v1")))
    assert (again["live"], collection.live_model) == (True, kept)
    record = collection.store.model(kept).record
    assert (record["compared_with"], record["outdated_by"]) == ("v1", None)
    assert "not promoted" not in record["verdict"]


def test_a_version_that_was_not_promoted_for_another_reason_is_not_judged_again(here: LocalEngine) -> None:
    kept = here.add_model("papers", here.head("papers", "v0")).model
    result_of(here, here.judge_model("papers", kept, ExampleScores(LOW, HIGH), promote=False))
    problem = here.judge_model("papers", kept, ExampleScores(LOW, HIGH)).problem
    assert problem is not None
    assert "was judged already" in problem["detail"]


def test_a_promotion_between_a_functions_scores_and_the_verdict(
    here: LocalEngine, engine: SearchEngine
) -> None:
    collection, scores = engine.collection("papers"), iter([LOW, HIGH])

    def promotes_another(layer: Any) -> list[float]:
        found = next(scores)
        if found is HIGH:
            collection.promote("v1")
        return found

    layer = dsearch.open_layer(engine, "papers")
    saved = dsearch.save_model(collection, layer, evidence=promotes_another)
    assert saved.live is None
    assert "v1 became live after the comparison with v0" in saved.reason
    assert collection.live_model == "v1"
    assert saved.version == "v2"  # kept


def test_a_promotion_while_judgements_are_ranked(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = engine.collection("papers")
    judge = saving.judge

    def promotes_another(*args: Any, **options: Any) -> Any:
        collection.promote("v1")
        return judge(*args, **options)

    monkeypatch.setattr(saving, "judge", promotes_another)
    monkeypatch.setattr("dsearch.training.candidate.Recorded.passed", property(lambda _: True))
    queries = {f"q{i}": text for i, text in enumerate(["river stone", "lamp", "music"] * 4)}
    judged = JudgedQueries(queries, {query: {"d001": 1} for query in queries})
    saved = dsearch.save_model(collection, collection.head("v0"), evidence=judged)
    assert (saved.live, collection.live_model) == (None, "v1")
    assert "v1 became live" in saved.reason


def test_who_accepts_it_has_it_live_all_the_same(here: LocalEngine, engine: SearchEngine) -> None:
    kept = here.add_model("papers", here.head("papers", "v0")).model
    engine.collection("papers").promote("v1")
    given = ExampleScores(LOW, HIGH, live="v0")
    assert result_of(here, here.judge_model("papers", kept, given, accept=True))["live"] is True
    assert engine.collection("papers").live_model == kept


@pytest.fixture
def client(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A server whose tasks compute here; v1 becomes live between each verdict and its promotion."""

    def computed(work: TaskWork, job: Any, compute: Any, *args: Any) -> Any:
        outcome = compute(lambda _: None, *args)
        engine.collection("papers").promote("v1")
        return outcome

    monkeypatch.setattr(TaskWork, "_spawned", computed)
    monkeypatch.setattr("dsearch.service.tasks.jobs.be_first_to_go", lambda: None)
    opened = partial(SearchEngine, engine.home.path, encoder=WordEncoder, readonly=True)
    app = patient_app(engine, open_engine=opened)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with served_in_thread(app, listening), Client(address) as connected:
            connected.ready()
            yield connected


@pytest.mark.parametrize("named", [None, "v0"])
def test_a_promotion_between_verdict_and_promotion_over_http(
    client: Client, engine: SearchEngine, named: str | None
) -> None:
    """Whether or not the scores name their version, the one that was live at the request counts."""
    scores, tensors = ExampleScores(LOW, HIGH, live=named), client.head("papers", "v0")
    kept = client.add_model("papers", tensors).model
    judged = result_of(client, client.judge_model("papers", kept, scores))
    engine.collection("papers").promote("v0")
    saved = result_of(client, client.save_model("papers", tensors, evidence=scores))
    for result in (judged, saved):
        assert (result["live"], result["gate"]["verdict"]) == (False, "passed")
        assert "not promoted, since v1 became live after the comparison with v0" in result["reason"]
    models = {model.version: model.record for model in client.models("papers").models}
    assert client.models("papers").live == "v1"
    for version in (kept, saved["trained"]):
        assert models[version]["outdated_by"] == "v1"
    again = result_of(client, client.judge_model("papers", kept, ExampleScores(LOW, HIGH, live="v1")))
    assert again["live"] is True


@pytest.mark.parametrize("kind", ["train", "tune"])
def test_a_promotion_during_a_task_that_learns(
    client: Client, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("dsearch.training.candidate.Recorded.passed", property(lambda _: True))
    queries = {f"q{i}": text for i, text in enumerate(["river stone", "lamp", "music"] * 4)}
    data: Any = {"queries": queries, "judgements": {query: {"d001": 1} for query in queries}}
    task = client.train("papers", **data, epochs=1) if kind == "train" else client.tune("papers", **data)
    result = result_of(client, task)
    trained = result["trained"]
    assert (result["live"], engine.collection("papers").live_model) == (False, "v1")
    assert "not promoted, since v1 became live during the run, which began with v0" in result["reason"]
    assert f"judge it again by `dsearch compare v1 {trained} -c papers" in result["reason"]
    assert result["verdict"].endswith(
        "since another version became live after the comparison; compare the two."
    )
    models = {model.version: model.record for model in client.models("papers").models}
    assert models[trained]["outdated_by"] == "v1"
    again = result_of(client, client.judge_model("papers", trained, ExampleScores(LOW, HIGH, live="v1")))
    assert again["live"] is True
