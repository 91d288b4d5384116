"""A language model that the user keeps: its likelihoods are a teacher's scores, without judgements."""

from __future__ import annotations

from pathlib import Path

import torch
from support.fakes import HashingEncoder
from support.training.topics import DOCUMENTS, TOPICS, queries_of, topics_in

from dsearch.engine import SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.training import run_training

TEXTS, JUDGED = queries_of()


def log_likelihoods(query: str) -> dict[str, float]:
    """log p(answer | document, question) of a reader that answers from the right documents."""
    draw = torch.Generator().manual_seed(int(query[1:3]))
    ids = [f"d{topic}-{n}" for topic in range(TOPICS) for n in range(DOCUMENTS)]
    noise = torch.rand(len(ids), generator=draw).tolist()
    return {id: (-0.5 if id in JUDGED[query] else -8.0) + share for id, share in zip(ids, noise, strict=True)}


def test_likelihoods_teach_the_search(tmp_path: Path) -> None:
    teacher = {query: log_likelihoods(query) for query in TEXTS}
    # The gate needs judgements: the document from which the answer is likeliest.
    likeliest = {query: {max(of, key=lambda id: of[id]): 1.0} for query, of in teacher.items()}
    job = TrainingJob(
        queries=TEXTS,
        judgements=likeliest,
        teacher=teacher,
        objective="teacher",
        epochs=25,
        learning_rate=0.01,
        tune=False,
    )
    with SearchEngine(tmp_path / "home", encoder=lambda: HashingEncoder(64)) as engine:
        topics = topics_in(engine)
        learned = run_training(topics, job)
        assert learned.register(topics, job).live == "v1"
        found = {
            model: [
                any(hit.id in JUDGED[query] for hit in result.hits)
                for query, result in zip(
                    TEXTS, topics.search_batch(list(TEXTS.values()), limit=2, model=model), strict=True
                )
            ]
            for model in ("v0", "v1")
        }
    assert sum(found["v1"]) > sum(found["v0"]) + 20
