"""Calibrate how likely first hits are right: on judged queries, and on queries made from the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.corpus.made_queries import EVERYDAY, known_item_queries, nonsense_queries
from dsearch.encoder import EncoderChange
from dsearch.engine import Collection, Snapshot
from dsearch.engine.evaluate import trained_on
from dsearch.engine.models.confidence import RECORDED, evidence_of_rankings
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.errors import InvalidRequest
from dsearch.evaluation.confidence import (
    FEWEST_JUDGED,
    AnsweredQueries,
    Calibration,
    Rows,
    calibrate,
    enough_judged,
)
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.types import Query

MADE = 160  # queries from documents
NONSENSE = 48
FEWEST_MADE = 12
_AT_A_TIME = 32
_TOP = 10
_MOVED = 0.2  # share of the documents that may come or go
_SCORES_AS_RIGHT = 0.25  # an everyday question whose first hit scores like this share of right ones has one


def ranked(
    snapshot: Snapshot,
    head: Head,
    texts: Sequence[str],
    states: Float32[np.ndarray, "queries encoder_dim"],
    relevant: Sequence[Int64[np.ndarray, " _"]],
) -> AnsweredQueries:
    """Rank queries as served, and compare their first hits with the relevant positions."""
    layer = SearchLayer(snapshot, head)
    rows: list[Rows] = []
    right: list[bool] = []
    scores: list[float] = []
    for start in range(0, len(texts), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        with torch.inference_mode():
            output = layer(torch.as_tensor(states[part]), list(texts[part]))
        rows.append(evidence_of_rankings(output, layer.head, layer.temperature))
        of_hits = output.scores.detach().double().numpy()
        for line, positions in enumerate(relevant[part]):
            hits = np.isin(output.positions[line, :_TOP], positions)
            right.append(bool(hits[:1].any()))
            scores += of_hits[line, :_TOP][hits].tolist()
    return AnsweredQueries(np.concatenate(rows), np.array(right), np.array(scores))


def ranked_examples(examples: Examples, head: Head) -> AnsweredQueries:
    """Rank judged queries that the head has not learned from."""
    relevant = [positions[grades > 0] for positions, grades in examples.relevant]
    return ranked(examples.snapshot, head, examples.texts, examples.states, relevant)


class MadeQueries(NamedTuple):
    """Queries made from documents, and queries that nothing answers, encoded: the same for every head.

    Attributes:
        snapshot: documents that they are made from.
        texts: first those of documents, then those that nothing answers.
        states: embeddings of all.
        relevant: positions that answer each of the first.
    """

    snapshot: Snapshot
    texts: list[str]
    states: Float32[np.ndarray, "queries encoder_dim"]
    relevant: list[Int64[np.ndarray, " _"]]


def made_queries(collection: Collection, *, version: str | None = None, seed: int = 0) -> MadeQueries | None:
    """Make and encode queries to calibrate heads by; None without an encoder, or of too few documents.

    Args:
        collection: collection that heads answer for.
        version: version with the encoder and the documents; the collection's own when None.
        seed: random seed.
    """
    if not collection.has_encoder:
        return None
    snapshot = collection.snapshot if version is None else collection.snapshot_for(version)
    encoder = collection.encoder if version is None else collection.encoder_of(version)
    visible = snapshot.visible()
    places = np.random.default_rng(seed).permutation(len(visible))[:MADE]
    positions = np.sort(visible[places])
    documents = collection.store.documents(snapshot.rows(positions))
    at = {document.id: int(position) for document, position in zip(documents, positions, strict=True)}
    present = known_item_queries(documents, seed)
    if len(present) < FEWEST_MADE:
        return None
    texts = [text for text, _ in present]
    texts += [*nonsense_queries(NONSENSE, seed), *EVERYDAY]
    states = encoder.encode_queries(texts)
    return MadeQueries(snapshot, texts, states, [np.array([at[id]]) for _, id in present])


def calibration_of(
    collection: Collection,
    head: Head,
    judged: AnsweredQueries | None = None,
    *,
    version: str | None = None,
    seed: int = 0,
    by: MadeQueries | None = None,
) -> Calibration | None:
    """Calibrate a head; None for a collection of too few documents to make queries from.

    Args:
        collection: collection that it answers for.
        head: the head.
        judged: judged queries ranked by it, which it has not learned from.
        version: version with the encoder and the documents; the collection's own when None.
        seed: random seed of the queries that are made.
        by: queries that were made for another head of that version.
    """
    queries = by or made_queries(collection, version=version, seed=seed)
    if queries is None:
        return None
    snapshot, texts, states, relevant = queries
    answered = len(relevant)
    drawn = ranked(snapshot, head, texts[:answered], states[:answered], relevant)
    none = [np.empty(0, np.int64)] * (len(texts) - answered)
    unanswered = ranked(snapshot, head, texts[answered:], states[answered:], none).rows
    if len(drawn.right_scores):
        high = float(np.quantile(drawn.right_scores, _SCORES_AS_RIGHT))
        apart = (unanswered[:, 0] < high) | (np.arange(len(unanswered)) < NONSENSE)
        unanswered = unanswered[apart]
    try:
        return calibrate(drawn, unanswered, judged, documents=len(snapshot.visible()))
    except InvalidRequest:  # no query was answered
        return None


def with_calibration(
    record: Mapping[str, Any],
    collection: Collection,
    head: Head,
    judged: AnsweredQueries | None,
    change: EncoderChange | None = None,
    *,
    by: MadeQueries | None = None,
) -> dict[str, Any]:
    """Return a record with the calibration of its head; as it is where there is none.

    `change`: what training changed of the encoder; made queries cannot be encoded by it before it is
    registered, so the calibration follows when the version is evaluated. `by`: as for `calibration_of`.
    """
    if change is not None or not collection.has_encoder:
        return dict(record)
    calibration = calibration_of(collection, head, judged, by=by)
    return dict(record) if calibration is None else {**record, RECORDED: calibration.to_dict()}


def calibrate_by_documents(collection: Collection) -> Calibration | None:
    """Calibrate the live version by made queries, unless it is calibrated and few documents changed since.

    Returns:
        The calibration that holds from now on; None where there is none.

    Raises:
        EncoderUnavailable, OSError.
    """
    version, documents = collection.live_model, collection.snapshot.documents
    present = collection.calibrations.of(version)
    if present is not None:
        moved = abs(documents - present.documents)
        if present.source == "judgements" or moved <= _MOVED * present.documents:
            return present
    if not collection.has_encoder or documents < FEWEST_MADE:
        return present
    drawn = calibration_of(collection, collection.head(version), version=version)
    if drawn is not None:
        collection.calibrations.keep(version, drawn)
    return drawn or present


def calibrate_by_judgements(
    collection: Collection,
    version: str,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float]],
) -> Calibration | None:
    """Calibrate a version by judged queries that it was not trained on; None where they are too few.

    Raises:
        EncoderUnavailable, OSError.
    """
    if collection.has_documents_of(version) or not collection.has_encoder:
        return None
    queried = [Query(id, queries[id]) for id in qrels if queries.get(id, "").strip()]
    if len(queried) < FEWEST_JUDGED:
        return None
    encoded = collection.encoder.encode_queries([query.text for query in queried])
    learned = set(trained_on(collection, version, queried, encoded))
    unlearned = {query.id: qrels[query.id] for query in queried if query.id not in learned}
    if len(unlearned) < FEWEST_JUDGED:
        return None
    try:
        examples = examples_from_judgements(collection, queries, unlearned)
    except InvalidRequest:  # no document is relevant
        return None
    states = collection.encoder_of(version).encode_queries(examples.texts)
    judged = ranked_examples(replace(examples, states=states), collection.head(version))
    if not enough_judged(judged.right):
        return None
    head = collection.head(version)
    calibration = calibration_of(collection, head, judged, version=version)
    if calibration is not None:
        collection.calibrations.keep(version, calibration)
    return calibration
