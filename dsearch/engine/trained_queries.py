"""Queries that a model was trained on, to tell them apart in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from dsearch.engine.collection import Collection
from dsearch.engine.models.files import UNTRAINED, load_learned_queries
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.types import Query, query_name

_SAME = 1 - 1e-5  # cosine of two embeddings of one text, by different batches or back ends


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
