"""MTEB 2: a local task's figures are those of `dsearch evaluate`."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.late import late
from support.service.service_fakes import WORDS, documents

from dsearch.client import LocalEngine
from dsearch.engine import System, make_run
from dsearch.errors import InvalidRequest
from dsearch.evaluation import evaluate
from dsearch.types import Query

mteb = late("mteb")
datasets = late("datasets")
retrieval_evaluator = late("mteb._evaluators.retrieval_evaluator")
tasks = late("mteb.abstasks.retrieval")
task_metadata = late("mteb.abstasks.task_metadata")
models_protocols = late("mteb.models.models_protocols")
adapter = late("dsearch.integrations.mteb")

CORPUS = documents(60)
QUERIES = [Query(f"q{i}", " ".join(np.random.default_rng(100 + i).choice(WORDS, size=3))) for i in range(12)]
QRELS = {
    query.id: {
        document.id: len(set(query.text.split()) & set(document.text.split())) for document in CORPUS[::3]
    }
    for query in QUERIES
}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    pytest.importorskip("mteb", reason="mteb is not installed (extra mteb)")


def local_task() -> Any:
    """A retrieval task of MTEB over `CORPUS`."""

    class LocalTask(tasks.AbsTaskRetrieval):
        metadata = task_metadata.TaskMetadata(
            name="LocalWords",
            description="documents of a few words",
            reference=None,
            dataset={"path": "none", "revision": "1"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            date=None,
            domains=None,
            task_subtypes=None,
            license=None,
            annotations_creators=None,
            dialect=None,
            sample_creation=None,
            bibtex_citation=None,
        )

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            corpus = [{"id": item.id, "title": item.title, "text": item.text} for item in CORPUS]
            queries = [{"id": query.id, "text": query.text} for query in QUERIES]
            split = {
                "corpus": datasets.Dataset.from_list(corpus),
                "queries": datasets.Dataset.from_list(queries),
                "relevant_docs": QRELS,
                "top_ranked": None,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalTask()


@pytest.mark.parametrize("mode", ["hybrid", "dense"])
def test_figures_agree_with_evaluate(local: LocalEngine, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """MTEB rounds what it returns to five digits, so its figures by query are looked at before."""
    scored: list[Any] = []

    def remembering(*args: Any) -> Any:
        scored.append(calculate(*args))
        return scored[-1]

    calculate = retrieval_evaluator.calculate_retrieval_scores
    monkeypatch.setattr("mteb._evaluators.retrieval_evaluator.calculate_retrieval_scores", remembering)
    model = adapter.DSearchModel(local, name=f"words-{mode}", options={"mode": mode, "candidates": 100})
    assert isinstance(model, models_protocols.SearchProtocol)
    result = mteb.evaluate(model, local_task(), cache=None, show_progress_bar=False).task_results[0]
    figures, by_query = result.scores["test"][0], scored[0].all_scores

    collection = local.engine.collection(model.collection)
    run = make_run(collection, QUERIES, System(mode))  # pyright: ignore
    grades = {query: {id: float(grade) for id, grade in of.items()} for query, of in QRELS.items()}
    judged = evaluate(run, grades, ["nDCG@10", "Recall@100", "AP@100"])
    for theirs, cut, ours in (
        ("ndcg_at_10", "ndcg_cut_10", "nDCG@10"),
        ("recall_at_100", "recall_100", "Recall@100"),
        ("map_at_100", "map_cut_100", "AP@100"),
    ):
        values = judged[ours]
        assert figures[theirs] == pytest.approx(float(np.mean([*values.values()])), abs=1e-5)
        assert {query: by_query[query][cut] for query in values} == pytest.approx(values, abs=1e-6), ours


def test_splits_with_long_names_have_collections_of_their_own(local: LocalEngine) -> None:
    model = adapter.DSearchModel(local, name="mteb")
    names = []
    for task, split in (
        ("Short", "test"),
        *(("MultilingualRetrieval" * 3, split) for split in ("dev", "test")),
    ):
        metadata = SimpleNamespace(name=task)
        corpus = [{"id": split, "text": f"river {split}"}]
        model.index(corpus, task_metadata=metadata, hf_split=split, hf_subset="acm_Arab-eng_Latn")
        names.append(model.collection)
        found = model.search([{"id": "q", "text": "river -test"}], top_k=5)["q"]
        assert found.keys() == {split}  # signs are no operators
    assert names[0] == "mteb-short-acm-arab-eng-latn-test"
    assert all(len(name) == 64 for name in names[1:])
    assert len(set(names)) == 3


def test_a_reranking_task_is_refused(local: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="use retrieval tasks"):
        adapter.DSearchModel(local).search([], top_k=10, top_ranked={"q": ["d"]})


def test_options_reach_each_block_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str], dict[str, Any]]] = []

    class Engine:
        def search_batch(self, collection: str, texts: list[str], **options: Any) -> list[Any]:
            asked.append((collection, texts, options))
            return [SimpleNamespace(hits=[SimpleNamespace(id=text, score=0.5)]) for text in texts]

    monkeypatch.setattr("dsearch.integrations.mteb._QUERIES_AT_A_TIME", 2)
    engine: Any = Engine()
    most = adapter.DSearchModel(engine)
    most.search([{"id": "q", "text": "text"}], top_k=5000)
    assert asked.pop()[2]["limit"] == 1000  # the most that a search gives
    rows = [{"id": f"q{number}", "text": f"text {number}"} for number in range(3)]
    for given in ({"mode": "dense"}, {"operators": True, "limit": 3}):
        model = adapter.DSearchModel(engine, options=given)
        model.collection = "c"
        ranked = model.search(rows, top_k=7)
        assert ranked == {row["id"]: {row["text"]: 0.5} for row in rows}
        options = {"limit": 7, "operators": False, **given}
        assert asked == [("c", ["text 0", "text 1"], options), ("c", ["text 2"], options)]
        asked.clear()


def test_a_name_that_is_as_long_as_it_may_be_stays() -> None:
    """One of 64 characters is that of the collection of earlier runs."""
    name_of = importlib.import_module("dsearch.integrations.mteb")._collection_name
    assert name_of("a" * 64) == "a" * 64
    assert len(name_of("a" * 65)) == 64
    assert name_of("a" * 65).startswith("a" * 55 + "-")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_a_corpus_is_stored_in_parts_and_whole(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    stored: list[list[str]] = []

    class Engine:
        def create_collection(self, name: str) -> None:
            pass

        def upsert(self, name: str, documents: list[Any]) -> Any:
            stored.append([document.id for document in documents])
            return SimpleNamespace(problems=[])

    monkeypatch.setattr("dsearch.integrations.mteb._BATCH_DOCUMENTS", 2)
    engine: Any = Engine()
    corpus = [{"id": number, "text": "river"} for number in range(count)]
    metadata = SimpleNamespace(name="task")
    adapter.DSearchModel(engine).index(corpus, task_metadata=metadata, hf_split="test", hf_subset="default")
    ids = [str(number) for number in range(count)]
    assert stored == [ids[start : start + 2] for start in range(0, count, 2)]
