"""Evaluation of a collection by the served path: runs, rejection of unanswerable queries, training queries.

A run ranks many queries, for any evaluator. The rejection curve measures how well a model separates the
queries that something in the collection answers from those that nothing answers. Queries that a version was
trained on are told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32

from dsearch.attention.retrieval.head import Head
from dsearch.attention_options import CANDIDATES
from dsearch.encoder import EncoderIdentity
from dsearch.engine.collection import Collection
from dsearch.engine.models.files import UNTRAINED, load_learned_queries
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.search.queries import tokens_of
from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation import Qrels, Run
from dsearch.evaluation.confidence import Answerability, answerability
from dsearch.types import Mode, Query, query_name

_QUERIES_AT_A_TIME = 32
_SAME = 1 - 1e-5  # cosine of two embeddings of one text, by different batches or back ends


@dataclass(frozen=True, slots=True)
class System:
    """A mode and a model to evaluate, with settings that override the model's."""

    mode: Mode = "hybrid"
    model: str = "v0"
    hops: int | None = None
    hop_strength: float | None = None


def encode_queries(
    collection: Collection, queries: Sequence[Query], model: str = UNTRAINED
) -> Float32[np.ndarray, "queries encoder_dim"]:
    """Embeddings of queries by a model's encoder, for several systems to share."""
    return collection.encoder_of(model).encode_queries([query.text for query in queries])


class QueryStates:
    """Embeddings of queries by the encoder of any model, computed once for each encoder.

    Args:
        collection: collection of the models.
        queries: ids and texts.
    """

    def __init__(self, collection: Collection, queries: Sequence[Query]):
        self._collection, self._queries = collection, queries
        self._by_encoder: dict[EncoderIdentity, Float32[np.ndarray, "queries encoder_dim"]] = {}

    def of(self, model: str) -> Float32[np.ndarray, "queries encoder_dim"]:
        """Return the embeddings by the encoder of this version."""
        identity = self._collection.encoder_of(model).identity
        if identity not in self._by_encoder:
            self._by_encoder[identity] = encode_queries(self._collection, self._queries, model)
        return self._by_encoder[identity]


def make_run(
    collection: Collection,
    queries: Sequence[Query],
    system: System | None = None,
    *,
    states: Float32[np.ndarray, "queries encoder_dim"] | None = None,
    head: Head | None = None,
    depth: int = 100,
    exclude: Mapping[str, Ids[str]] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Rank the collection for every query: query id → (document id, score), best first.

    Args:
        collection: collection to search.
        queries: ids and texts.
        system: mode, model and settings.
        states: embeddings of the queries by the system's encoder, if available.
        head: unregistered head, in place of the system's.
        depth: documents per query.
        exclude: query id → documents to exclude from its ranking.
        on_progress: receives the number of queries done.

    Raises:
        ModelNotFound, InvalidRequest: as in a search.
    """
    system, exclude = system or System(), exclude or {}
    if states is None:
        states = encode_queries(collection, queries, system.model)
    spare = max((len(ids) for ids in exclude.values()), default=0)
    layer = SearchLayer(
        collection.snapshot_for(system.model),
        collection.head(system.model) if head is None else head,
        mode=system.mode,
        candidates=max(CANDIDATES, depth + spare),
        hops=system.hops,
        hop_strength=system.hop_strength,
    )
    run: Run = {}
    for start in range(0, len(queries), _QUERIES_AT_A_TIME):
        block = queries[start : start + _QUERIES_AT_A_TIME]
        texts = [query.text for query in block]
        tokens = None
        if layer.stages == 2:
            tokens = tokens_of(collection, texts, layer.snapshot, system.model if head is None else None)
        with torch.inference_mode():
            output = layer(torch.as_tensor(states[start : start + len(block)]), texts, tokens=tokens)
        ids = collection.ids_at(layer.snapshot, output.positions[:, : depth + spare])
        scores = output.scores.numpy()
        for row, query in enumerate(block):
            left_out = exclude.get(query.id, ())
            ranked = [
                (id, float(score))
                for id, score in zip(ids[row], scores[row], strict=False)
                if id and id not in left_out
            ]
            run[query.id] = ranked[:depth]
        if on_progress is not None:
            on_progress(start + len(block))
    return run


_AT_A_TIME = 64
NOTHING = -1e30  # score of an empty result


def with_texts(qrels: Qrels, texts: Mapping[str, str], warn: Callable[[str], object]) -> Qrels:
    """Leave out judged queries that have no text: nobody can search for them, so they would count 0.

    Args:
        qrels: query id → document id → grade.
        texts: query id → text.
        warn: called with a sentence that names some of those left out, if there are any.

    Raises:
        InvalidRequest: no judged query has a text.
    """
    textless = [query for query in qrels if not texts.get(query, "").strip()]
    if not textless:
        return qrels
    named = ", ".join(map(repr, textless[:3]))
    what = amount(len(textless), "judged query", "judged queries")
    if len(textless) == len(qrels):
        raise InvalidRequest(f"{what} and a text for none of them, such as {named}; give the queries' texts")
    warn(f"{what} left out, without a text: {named}{', …' if len(textless) > 3 else ''}")
    return {query: grades for query, grades in qrels.items() if texts.get(query, "").strip()}


def absent_documents_warning(
    collection: Collection, qrels: Mapping[str, Mapping[str, float | int]]
) -> str | None:
    """Return a sentence on relevant documents that the collection does not hold; None if it holds all.

    They count as not retrieved, so that an unfinished index or the judgements of another corpus look like a
    bad search.
    """
    relevant = [{id for id, grade in judged.items() if grade > 0} for judged in qrels.values()]
    relevant = [ids for ids in relevant if ids]
    every = set[str]().union(*relevant)
    absent = every - collection.store.rows_of(sorted(every)).keys()
    if not absent:
        return None
    lost = sum(ids <= absent for ids in relevant)
    return (
        f"{len(absent)} of {len(every)} relevant documents are not in collection {collection.name!r} and "
        f"count as not retrieved; {lost} of {len(relevant)} judged queries have none in it"
    )


def judged_answerability(
    collection: Collection,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float | int]],
    *,
    model: str | None = None,
) -> Answerability | None:
    """Measure how well a model's first hits' scores tell queries that nothing answers.

    Args:
        collection: collection to search.
        queries: query id → text.
        qrels: query id → document id → grade; a query whose grades are all 0 or less is unanswerable.
        model: a version; the live one when None.

    Returns:
        None if the judgements lack queries of one of the two kinds.
    """
    texts, wrong = list[str](), list[bool]()
    for query, grades in qrels.items():
        if grades and (text := queries.get(query, "").strip()):
            texts.append(text)
            wrong.append(max(grades.values()) <= 0)
    if not any(wrong) or all(wrong):
        return None
    scores = _first_scores(collection, texts, model)
    return answerability(scores, np.array(wrong))


def _first_scores(collection: Collection, texts: Sequence[str], model: str | None) -> np.ndarray:
    """Return the score of each query's first hit."""
    scores = list[float]()
    for start in range(0, len(texts), _AT_A_TIME):
        for result in collection.search_batch(
            texts[start : start + _AT_A_TIME], limit=1, model=model, operators=False, coverage=False
        ):
            scores.append(result.hits[0].score if result.hits else NOTHING)
    return np.array(scores)


def trained_on(
    collection: Collection,
    version: str,
    queries: Sequence[Query],
    states: Float32[np.ndarray, "queries encoder_dim"],
) -> list[str]:
    """Ids of the queries that a version or one of its ancestors was trained on, or that it remembers.

    They are recognised by their text, without regard to case and white space; those of clicks, whose texts
    are not stored, by their embeddings. Versions that store no training queries, such as tuned and uploaded
    ones, recognise none.

    Args:
        collection: collection of the model.
        version: the model.
        queries: queries to recognise.
        states: their embeddings by the encoder that training started from.
    """
    recognised: set[str] = set()
    at: str | None = version
    while at is not None and at != UNTRAINED:
        learned = load_learned_queries(collection.store, at)
        if learned is not None:
            recognised |= _recognised(learned, queries, states)
        at = collection.store.model(at).parent
    if collection.stored_head(version).memory is not None:  # it answers by what was remembered, too
        texts = {query_name(row.text) for row in collection.remembered.rows()}
        recognised |= {query.id for query in queries if query_name(query.text) in texts}
    return [query.id for query in queries if query.id in recognised]


def _recognised(
    learned: LearnedQueries,
    queries: Sequence[Query],
    states: Float32[np.ndarray, "queries encoder_dim"],
) -> set[str]:
    """Ids of the queries that are among those of a training."""
    if learned.texts is not None:
        texts = {query_name(text) for text in learned.texts}
        return {query.id for query in queries if query_name(query.text) in texts}
    trained = learned.states
    if trained is None or not len(trained) or trained.shape[1] != states.shape[1]:
        return set()
    nearest = (states @ trained.T).max(1)
    return {query.id for query, near in zip(queries, nearest, strict=True) if near >= _SAME}


@dataclass(frozen=True, slots=True)
class TrainedApart:
    """Queries of an evaluation by whether a version was trained on them.

    A training query shows what a model remembers, not what it answers better.

    Attributes:
        groups: "trained on" and "not trained on", each with ids of queries.
        warning: one sentence, which names the versions.
    """

    groups: dict[str, list[str]]
    warning: str


def trained_apart(
    collection: Collection,
    versions: Sequence[str],
    queries: Sequence[Query],
    states: Float32[np.ndarray, "queries encoder_dim"],
) -> TrainedApart | None:
    """Tell queries that any of these versions was trained on from the others; None if there are none.

    Arguments as for `trained_on`.
    """
    by_version = {version: trained_on(collection, version, queries, states) for version in versions}
    every = {query for ids in by_version.values() for query in ids}
    if not every:
        return None
    named = ", ".join(f"{len(ids)} by {version}" for version, ids in by_version.items() if ids)
    ids = [query.id for query in queries]
    groups = {
        "trained on": [id for id in ids if id in every],
        "not trained on": [id for id in ids if id not in every],
    }
    if not groups["not trained on"]:
        advice = "none of them shows how well new queries are answered: judge others"
    else:
        advice = "only the group not trained on shows how well new queries are answered"
    return TrainedApart(
        groups, f"{len(every)} of these {len(ids)} queries were trained on ({named}); {advice}"
    )
