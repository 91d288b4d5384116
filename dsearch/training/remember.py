"""Learning at insert time: judged queries become rows of the live version's query memory, without training.

Strength, temperature and null level stay as the gate admitted them. Rows are operations of the collection,
apart from its versions: they are durable and shown at once, in the sequence of operations, and taken back by
dropping those after one of them. Versions that earlier releases made of insertions keep their rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsearch.attention.memory_rows import START_NULL_LEVEL, START_TEMPERATURE
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection
from dsearch.engine.state.remembered import JUDGEMENTS
from dsearch.errors import Conflict
from dsearch.results import MemoryResult
from dsearch.store import MemoryRow
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.memory import MemorySetting
from dsearch.types import query_name

SCOPE = "remember"  # of the record of such a version
DEFAULT = MemorySetting(0.8, START_TEMPERATURE, START_NULL_LEVEL)  # of a memory that no gate admitted


def remember(
    collection: Collection,
    queries: Mapping[str, str],
    judgements: Mapping[str, Mapping[str, float]],
    *,
    accept: bool = False,
    key: str = "",
) -> MemoryResult:
    """Add judged queries to the memory of the live version; every later search has them.

    Args:
        collection: collection of the documents.
        queries: query id → text. A text that the memory has gets these grades beside its own.
        judgements: query id → document id → grade. Grades above 0 count, each divided by its query's best.
        accept: begin a memory with default settings where the live version has none, though no gate
            admitted it.
        key: who sends them: the id of an API key.

    Raises:
        InvalidRequest: no grade above 0 of a document that is there, for a query with a text.
        Conflict: the live version has no memory, or an encoder of its own; or it changed meanwhile.
    """
    _require_extensible(collection, accept)
    examples = examples_from_judgements(collection, *_by_text(queries, judgements))
    rows = judged_queries(examples, key)
    previous = _require_extensible(collection, accept)
    live = previous
    if collection.stored_head(live).memory is None:
        live = _begun(collection, live)
    sequence = collection.remembered.add(rows)
    judged = sum(len(row.grades) for row in rows)
    return MemoryResult(live, previous, len(rows), judged, examples.left_out, sequence)


def judged_queries(examples: Examples, key: str) -> list[MemoryRow]:
    """Examples as rows of the query memory."""
    rows: list[MemoryRow] = []
    for text, state, (positions, grades) in zip(
        examples.texts, examples.states, examples.relevant, strict=True
    ):
        of_documents = examples.snapshot.rows(positions).tolist()
        by_row = dict(zip(of_documents, grades.tolist(), strict=True))
        unit = state / max(float(np.linalg.norm(state)), 1e-12)
        rows.append(MemoryRow(text, unit, by_row, JUDGEMENTS, key))
    return rows


def _begun(collection: Collection, live: str) -> str:
    """Begin a memory: a version like the live one with default settings and without rows, which is live."""
    none = np.zeros(0, np.int64)
    nothing = np.zeros((0, collection.store.dimension), np.float32)
    memory = QueryMemory(
        nothing,
        nothing,
        none,
        none,
        none,
        np.zeros(0, np.float32),
        texts=[],
        strength=DEFAULT.strength,
        temperature=DEFAULT.temperature,
        null_level=DEFAULT.null_level,
    )
    head = collection.stored_head(live).remembering(memory)
    version = collection.add_model(head, {"scope": SCOPE}, parent=live)
    try:
        collection.promote(version, after=live)
    except Conflict:
        collection.delete_model(version)
        raise
    return version


def with_remembered(
    collection: Collection, queries: Mapping[str, str], judgements: Mapping[str, Mapping[str, float]]
) -> tuple[Mapping[str, str], dict[str, Mapping[str, float]]]:
    """Judged queries with those that were remembered since; one that is judged here too counts once, as here.

    Of the documents that are still there; clicks are no judgements.
    """
    names = {query_name(queries[query]) for query in judgements if query in queries}
    texts, judged = dict(queries), dict(judgements)
    rows: dict[str, tuple[str, dict[int, float]]] = {}
    for row in collection.remembered.rows():
        name = query_name(row.text)
        if row.source == JUDGEMENTS and name not in names:
            rows[name] = row.text, {**rows.get(name, ("", {}))[1], **row.grades}
    snapshot = collection.snapshot
    visible = snapshot.rows(snapshot.visible())
    for number, (text, grades) in enumerate(rows.values()):
        documents = np.intersect1d(np.array([*grades], np.int64), visible)
        if len(documents):
            query, ids = f"remembered {number}", collection.store.ids(documents)
            texts[query] = text
            judged[query] = {id: grades[row] for row, id in zip(documents.tolist(), ids, strict=True)}
    return texts, judged


def with_inserted(head: Head, memory: QueryMemory | None) -> Head:
    """The head whose memory also has the queries that were inserted into another one since it was trained."""
    if head.memory is None or memory is None or not memory.inserted.any():
        return head
    return head.remembering(head.memory.extended(memory.of_inserted()))


def _require_extensible(collection: Collection, accept: bool) -> str:
    """Return the live version if queries can be inserted into it.

    Raises:
        Conflict: it has no memory, or an encoder or documents of its own.
    """
    live = collection.live_model
    record = collection.store.model(live).record
    if "query_encoder" in record or "documents" in record:
        raise Conflict(
            f"{live}, which is live, has a query encoder of its own, whose memory only training fits; "
            "train with these judgements, or promote a version of scope head"
        )
    if "memory" not in record and not accept:
        raise Conflict(
            f"{live}, which is live, has no query memory; train one on judged queries, or accept one with "
            "default settings"
        )
    return live


def _by_text(
    queries: Mapping[str, str], judgements: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Queries and judgements by the name of the text: several ids of one text are one query."""
    texts: dict[str, str] = {}
    judged: dict[str, dict[str, float]] = {}
    for query, grades in judgements.items():
        text = queries.get(query, "")
        name = query_name(text) or query
        texts.setdefault(name, text)
        judged[name] = {**judged.get(name, {}), **grades}
    return texts, judged
