"""Learning at insert time: judged queries become rows of the live version's query memory, without training.

Strength, temperature and null level stay as the gate admitted them. The result is a version of its own, so it
is listed, explained, compared and rolled back like any other. Its parent is the version that was trained, not
the one with fewer rows, so that versions of earlier insertions can be deleted; the last few are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import START_NULL_LEVEL, START_TEMPERATURE, QueryMemory
from dsearch.engine import Collection
from dsearch.errors import Conflict, ModelNotFound
from dsearch.results import Remembered
from dsearch.training.data.examples import examples_from_judgements
from dsearch.training.memory import MemorySetting, memory_of
from dsearch.types import query_name

SCOPE = "remember"  # of the record of such a version
DEFAULT = MemorySetting(0.8, START_TEMPERATURE, START_NULL_LEVEL)  # of a memory that no gate admitted
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
    _require_extensible(collection, accept)
    examples = examples_from_judgements(collection, *_by_text(queries, judgements))
    more = memory_of(examples, DEFAULT, inserted=True)
    assert more is not None
    for _ in range(_TRIES):
        live = _require_extensible(collection, accept)
        head, record = collection.head(live), collection.store.model(live)
        memory = more if head.memory is None else head.memory.extended(more)
        base = record.parent if record.record.get("scope") == SCOPE else live
        assert base is not None
        counts = {"inserted": len(more), "judgements": len(more.grades), "left_out": examples.left_out}
        version = collection.add_model(head.remembering(memory), {"scope": SCOPE, **counts}, parent=base)
        try:
            collection.promote(version, after=live)
        except Conflict:
            if collection.live_model == live:
                raise
            collection.delete_model(version)
            continue  # from the version that went live meanwhile
        _delete_oldest(collection, base)
        sequence = collection.store.sequence
        return Remembered(version, live, len(more), len(more.grades), examples.left_out, sequence)
    raise Conflict("the live version kept changing; try again")


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
        except (Conflict, ModelNotFound):  # the parent of another, live again, or deleted meanwhile
            continue
