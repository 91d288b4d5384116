"""Statistics of a collection: contents, size and cost."""

from __future__ import annotations

from typing import Any

from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.indexing.tuning import keys_report
from dsearch.engine.maintenance.compact import folder_bytes
from dsearch.engine.models.files import live_problem
from dsearch.engine.searchable import Searchable


def statistics(collection: Searchable) -> dict[str, Any]:
    """Return documents, delta, generations, encoder, keys with measured recall, models and bytes, as JSON.

    `delta` counts documents written or deleted since the live build, and their share of its documents. No
    file of the index is read, so a damaged index does not prevent the rest.
    """
    store = collection.store
    counts, live = store.count(), store.live_generation()
    changed = 0
    if live is not None:
        changes = store.changes_since(live.snapshot)
        changed = len(changes.added) + len(changes.removed)
    generations = [
        {
            "number": generation.number,
            "live": live is not None and generation.number == live.number,
            "documents": generation.rows,
            "sequence": generation.snapshot,
            "bytes": folder_bytes(generation_folder(store, generation.number)),
        }
        for generation in store.generations()
    ]
    total = folder_bytes(store.path)
    return {
        "name": store.name,
        "documents": counts.documents,
        "pending": counts.pending,
        "deleted": counts.tombstones,
        "sequence": store.sequence,
        "model": collection.live_model,
        "model_problem": live_problem(store),
        "models": len(store.models()),
        "encoder": collection.encoder_in_use(),
        "delta": {"documents": changed, "share": _share(changed, live.rows if live else 0)},
        "keys": keys_report(store),
        "generations": generations,
        "bytes": total,
        "bytes_per_document": round(total / counts.documents, 1) if counts.documents else None,
        "rebuild": collection.rebuild_status(),
    }


def _share(changed: int, built: int) -> float:
    """Part of the index that changed; all of it where nothing was built."""
    return round(changed / built, 4) if built else float(changed > 0)
