"""Learning at insert time: judged queries become rows of the live version's query memory, without training.

Strength, temperature and null level stay as the gate admitted them. The result is a version of its own, so it
is listed, explained, compared and rolled back like any other. Its parent is the version that was trained, not
the one with fewer rows, so that versions of earlier insertions can be deleted; the last few are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine.collection import Collection
from dsearch.engine.models.tensors import require_head_alone
from dsearch.errors import Conflict, DsearchError, InvalidRequest
from dsearch.results import Remembered
from dsearch.types import query_name

SCOPE = "remember"  # of the record of such a version
STRENGTH = 0.8  # γ of a memory that no gate admitted
KEPT = 10  # versions of one parent
_TRIES = 3


def remember(
    collection: Collection,
    queries: Mapping[str, str],
    judgements: Mapping[str, Mapping[str, float]],
    *,
    accept: bool = False,
) -> Remembered:
    """Add judged queries to the memory of the live version; the new version is live at once.

    Args:
        collection: collection of the documents.
        queries: query id → text. A text that the memory has gets these grades beside its own.
        judgements: query id → document id → grade. Grades above 0 count, each divided by its query's best.
        accept: begin a memory with default settings where the live version has none, though no gate
            admitted it.

    Raises:
        InvalidRequest: no grade above 0 of a document that is there, for a query with a text.
        Conflict: the live version has no memory, or an encoder of its own; or it kept changing meanwhile.
    """
    for _ in range(_TRIES):
        live = collection.live_model
        head = collection.head(live)
        record = collection.store.model(live)
        _require_extensible(live, head, record.record, accept)
        more, left_out = _memory_of(collection, queries, judgements)
        memory = more if head.memory is None else head.memory.extended(more)
        base = record.parent if record.record.get("scope") == SCOPE else live
        assert base is not None
        counts = {"inserted": len(more), "judgements": len(more.grades), "left_out": left_out}
        version = collection.add_model(head.remembering(memory), {"scope": SCOPE, **counts}, parent=base)
        try:
            collection.promote(version, after=live)
        except Conflict:
            if collection.live_model == live:
                raise
            collection.delete_model(version)
            continue  # from the version that went live meanwhile
        _delete_oldest(collection, base)
        return Remembered(version, live, len(more), len(more.grades), left_out, collection.store.sequence)
    raise Conflict("the live version kept changing; try again")


def with_inserted(head: Head, memory: QueryMemory | None) -> Head:
    """The head whose memory also has the queries that were inserted into another one since it was trained."""
    if head.memory is None or memory is None or not memory.inserted.any():
        return head
    return head.remembering(head.memory.extended(memory.of_inserted()))


def _require_extensible(live: str, head: Head, record: Mapping[str, Any], accept: bool) -> None:
    require_head_alone(live, {name: value for name, value in record.items() if name != "memory"})
    if head.memory is None and not accept:
        raise Conflict(
            f"{live}, which is live, has no query memory; train one on judged queries, or accept one with "
            "default settings"
        )


def _memory_of(
    collection: Collection, queries: Mapping[str, str], judgements: Mapping[str, Mapping[str, float]]
) -> tuple[QueryMemory, dict[str, int]]:
    """The judged queries as a memory, and the number of judgements that were left out, by reason."""
    ids = sorted({document for grades in judgements.values() for document in grades})
    rows = collection.store.rows_of(ids)
    snapshot, ids_here = collection.snapshot, list(rows)
    positions = snapshot.positions_of(np.array([rows[id] for id in ids_here], np.int64))
    position_of = {id: int(at) for id, at in zip(ids_here, positions, strict=True) if at >= 0}
    reasons = {"unknown documents": 0, "grades of 0 or less": 0, "queries without text": 0}
    texts: dict[str, str] = {}  # by name: several ids of one text are one query
    grades_of: dict[tuple[str, int], float] = {}
    for query, grades in judgements.items():
        positive = {id: grade for id, grade in grades.items() if grade > 0}
        grade_at = {position_of[id]: grade for id, grade in positive.items() if id in position_of}
        reasons["grades of 0 or less"] += len(grades) - len(positive)
        reasons["unknown documents"] += len(positive) - len(grade_at)
        if not (text := queries.get(query, "").strip()):
            reasons["queries without text"] += 1
        elif grade_at:
            name = query_name(text)
            texts.setdefault(name, text)
            grades_of |= {(name, at): grade for at, grade in grade_at.items()}
    left_out = {reason: count for reason, count in reasons.items() if count}
    if not grades_of:
        why = "; ".join(f"{count} {reason}" for reason, count in left_out.items()) or "there are none"
        raise InvalidRequest(f"no judgement to remember: {why}. Give a grade above 0 for a document's id")
    place = {name: at for at, name in enumerate(texts)}
    of_query = np.array([place[name] for name, _ in grades_of], np.int64)
    judged, of_document = np.unique([at for _, at in grades_of], return_inverse=True)
    memory = QueryMemory(
        collection.encoder.encode_queries([*texts.values()]),
        snapshot.embeddings(judged[None])[0],
        snapshot.rows(judged),
        of_query,
        of_document,
        np.array([*grades_of.values()], np.float32),
        texts=[*texts.values()],
        inserted=np.ones(len(texts), bool),
        strength=STRENGTH,
    )
    return memory, left_out


def _delete_oldest(collection: Collection, parent: str) -> None:
    """Delete all but the newest versions that were made here of `parent`; one that is in use stays."""
    versions = [
        model.version
        for model in collection.store.models()
        if model.parent == parent and model.record.get("scope") == SCOPE
    ]
    for version in versions[:-KEPT]:
        try:
            collection.delete_model(version)
        except DsearchError:  # the parent of another, or promoted again: it is needed
            continue
