"""What a collection is, holds and costs, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.indexing.tuning import kept_tuned
from dsearch.engine.maintenance.compact import folder_bytes
from dsearch.engine.options import KeyOptions
from dsearch.store import Store

if TYPE_CHECKING:
    from dsearch.engine.collection import Collection


def statistics(collection: Collection) -> dict[str, Any]:
    """As JSON: documents, delta, generations, keys with their measured recall, models, bytes.

    `delta` counts what was written or deleted since the live generation was built, and its share of the
    documents of that. Reads no file of the index, so that a damaged one does not hide the rest.
    """
    store = collection.store
    counts, live = store.count(), store.live_generation()
    changed = 0
    if live is not None:
        changes = store.changes_since(live.snapshot)
        changed = len(changes.added) + len(changes.removed)
    generations = [
        {
            "number": one.number,
            "live": live is not None and one.number == live.number,
            "documents": one.rows,
            "sequence": one.snapshot,
            "bytes": folder_bytes(generation_folder(store, one.number)),
        }
        for one in store.generations()
    ]
    total = folder_bytes(store.path)
    return {
        "name": store.name,
        "documents": counts.documents,
        "pending": counts.pending,
        "deleted": counts.tombstones,
        "sequence": store.sequence,
        "model": store.live_model(),
        "models": len(store.models()),
        "delta": {"documents": changed, "share": round(changed / max(1, live.rows if live else 0), 4)},
        "keys": keys_report(store),
        "generations": generations,
        "bytes": total,
        "bytes_per_document": round(total / counts.documents, 1) if counts.documents else None,
        "rebuild": collection.rebuilder.status(),
        "verification": collection.verification,
    }


def keys_report(store: Store) -> dict[str, Any] | None:
    """How the live generation keeps its keys, and what was measured of it; None before the first.

    `asked` is what was asked for ("auto", say), `kind` what is there.
    """
    live = store.live_generation()
    if live is None or "dense" not in live.record:
        return None
    dense: dict[str, Any] = live.record["dense"]
    measured: dict[str, Any] = dense["measured"] or {}
    parameters: dict[str, int] = dense["parameters"]
    tuned = kept_tuned(store, live.number)
    if tuned is not None:
        measured, parameters = tuned.get("measured", measured), tuned.get("parameters", parameters)
    asked = KeyOptions.of(store)
    return {
        "kind": dense["kind"],
        "asked": asked.kind,
        "recall_target": asked.recall_target,
        "memory_bytes": asked.memory_bytes,
        "parameters": parameters,
        "recall_at_10": measured.get("recall_at_10"),
        "queries_per_s": measured.get("queries_per_s"),
        "bytes_per_document": measured.get("bytes_per_document"),
    }
