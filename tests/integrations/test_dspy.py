"""DSPy, its own evaluation and optimiser copies, against a real server: the metric becomes feedback."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.late import late

from dsearch.client import Client, LocalEngine
from dsearch.types import Document

dspy = late("dspy")
adapter = late("dsearch.integrations.dspy")

pytestmark = pytest.mark.server
PAGES = {
    "d0": "river stone lamp",
    "d1": "music cat house",
    "d2": "attention query key",
    "d3": "house lamp river",
}


def program(retriever: Any) -> Any:
    """It answers with the first passage: no language model is needed."""

    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.retriever = retriever

        def forward(self, question: str) -> Any:
            hits: Any = self.retriever(question)
            return dspy.Prediction(answer=hits.passages[0], ids=hits.ids)

    return Program()


def metric(example: Any, prediction: Any, trace: Any = None) -> float:
    return float(example.answer == prediction.answer)


def helped(example: Any, prediction: Any, ids: Any) -> list[str]:
    return [id for id in ids if PAGES[id] == example.answer]


@pytest.fixture
def papers(engine: Client | LocalEngine, empty: str) -> str:
    engine.upsert(empty, [Document(id, text) for id, text in PAGES.items()])
    return empty


def examples() -> list[Any]:
    pairs = [("music cat", PAGES["d1"]), ("attention", "of no document")]
    return [dspy.Example(question=words, answer=answer).with_inputs("question") for words, answer in pairs]


def test_a_metric_flows_back_as_outcome(
    engine: Client | LocalEngine, papers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[tuple[Any, Any]] = []
    report = engine.report_outcome

    def noted(*arguments: Any, **options: Any) -> Any:
        outcomes.append((options, report(*arguments, **options)))
        return outcomes[-1][1]

    monkeypatch.setattr(engine, "report_outcome", noted)
    retriever = adapter.DSearchRetriever(engine, papers, k=2)
    learning = retriever.learning(metric, useful=helped)
    evaluate = dspy.Evaluate(devset=examples(), metric=learning, num_threads=2)
    assert evaluate(program(retriever)).score == 50.0
    ends = sorted((options["success"], tuple(options["useful_ids"])) for options, _ in outcomes)
    assert ends == [(False, ()), (True, ("d1",))]
    assert all(recorded.events > 0 for _, recorded in outcomes)
    if isinstance(engine, LocalEngine):
        pages = list(engine.engine.collection(papers).feedback.pages())
        graded = {(event.object_id, event.action) for page in pages for event in page.events}
        assert ("d1", "used") in graded
        assert {action for _, action in graded} == {"used", "dismissed"}


def test_a_run_is_one_episode_and_copies_share_the_engine(
    engine: Client | LocalEngine, papers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever: Any = adapter.DSearchRetriever(engine, papers, k=1)
    twin: Any = copy.deepcopy(program(retriever)).retriever
    assert twin is not retriever
    assert twin.engine is engine
    ids = twin("music").ids + retriever("attention", k=2).ids
    ends: list[Any] = []
    monkeypatch.setattr(engine, "report_outcome", lambda *of, **options: ends.append((of, options)))
    nothing = retriever.learning(lambda *_: True)
    assert nothing(None, None) is True
    ((collection, episode),) = [of for of, _ in ends]
    assert collection == papers
    assert episode.startswith("dspy-")
    assert len(ids) == 3
    nothing(None, None)  # nothing was retrieved since
    assert len(ends) == 1
    for value, succeeds in ((0.8, True), (0.79, False), (True, True)):  # the least value is a success
        retriever("music")
        retriever.learning(lambda *_, value=value: value, success=0.8)(None, None)
        assert ends[-1][1]["success"] is succeeds, value


def test_every_search_of_a_run_counts(
    engine: Client | LocalEngine, papers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever: Any = adapter.DSearchRetriever(engine, papers, k=1)
    monkeypatch.setattr(engine, "report_outcome", lambda *_, **__: None)
    read: list[tuple[str, ...]] = []
    judge = retriever.learning(lambda *_: True, useful=lambda *of: read.append(tuple(of[2])) or ())
    ids = retriever("music cat").ids + retriever("attention").ids
    judge(None, None)
    assert read == [("d1", "d2")] == [tuple(ids)]


def test_options_of_a_call_take_the_place_of_the_retrievers(
    engine: Client | LocalEngine, papers: str
) -> None:
    retriever = adapter.DSearchRetriever(engine, papers, k=2, mode="keyword")
    assert retriever("zebra").ids == []
    assert len(retriever("zebra", mode="dense").ids) == 2


def test_a_metric_that_fails_ends_its_run(
    engine: Client | LocalEngine, papers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the next run reports is of its own passages: evaluations go on after an error."""
    retriever: Any = adapter.DSearchRetriever(engine, papers, k=1)
    ends: list[str] = []
    monkeypatch.setattr(engine, "report_outcome", lambda _, episode, **__: ends.append(episode))
    read: list[Any] = []
    judge = retriever.learning(lambda *_: 1 / len(read), useful=lambda *of: read.extend(of[2]) or of[2])
    retriever("music cat")
    with pytest.raises(ZeroDivisionError):
        judge(None, None)
    judge_well = retriever.learning(lambda *_: True, useful=lambda *of: read.extend(of[2]) or of[2])
    ids = retriever("attention").ids
    judge_well(None, None)
    assert (read, len(ends)) == (ids, 1)
