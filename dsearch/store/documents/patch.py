"""Change a part of a document's metadata: JSON Merge Patch (RFC 7396)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from dsearch.errors import DocumentNotFound, InvalidRequest
from dsearch.store.documents import read, write
from dsearch.store.documents.validate import prepare
from dsearch.store.metadata import MAX_METADATA_DEPTH
from dsearch.store.records import WriteReceipt
from dsearch.store.sqlite.journal import Operation


def update_metadata(operation: Operation, id: str, changes: object) -> WriteReceipt:
    """Write a version of `id` with `changes` merged into its metadata."""
    if not isinstance(changes, dict):
        raise InvalidRequest(
            f'changes of type {type(changes).__name__}; give an object of new values, {{"key": null}} removes'
        )
    document = read.get(operation.connection, id)
    if document is None:
        raise DocumentNotFound(f"no document {id[:80]!r} to change; upsert it whole first")
    metadata = merge_patch(document.metadata, cast("dict[str, Any]", changes))
    return write.upsert(operation, prepare([replace(document, metadata=metadata)]), {}, {})


def merge_patch(target: Any, patch: Any, depth: int = MAX_METADATA_DEPTH + 1) -> Any:
    """The function MergePatch of RFC 7396, section 2; neither argument is changed.

    Values nested deeper than `depth` are copied unchanged; `validate` rejects them.
    """
    if not isinstance(patch, dict) or depth == 0:
        return cast("Any", patch)
    merged: dict[str, Any] = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for key, value in cast("dict[str, Any]", patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value, depth - 1)
    return merged
