"""What calls about one collection do: a collection in, a result out, whoever was asked.

`answer` carries out the declared calls of `ANSWERS`; the other functions have their parameters as well.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dsearch import operations
from dsearch.engine.collection import Collection, Searchable
from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.indexing.releases import deletion_note
from dsearch.engine.indexing.tuning import keys_report
from dsearch.engine.maintenance.compact import folder_bytes
from dsearch.engine.models.drafts import EXPIRY_S
from dsearch.engine.models.files import UNTRAINED, live_problem, retired_part
from dsearch.engine.models.ledger import tries_left
from dsearch.engine.models.tensors import head_bytes, head_from_bytes, require_head_alone
from dsearch.errors import Conflict, DocumentNotFound, InvalidCursor, InvalidRequest, amount
from dsearch.operations import Call
from dsearch.results import (
    DeleteResult,
    DocumentPage,
    DraftAdded,
    Facets,
    MetadataResult,
    Model,
    ModelAdded,
    Models,
    PromotionResult,
    RowsDropped,
)
from dsearch.search_options import MAX_LIMIT
from dsearch.store.filters import compared_fields, filter_of, parse_field
from dsearch.store.reader import refuse_misspelt
from dsearch.types import Document

T = TypeVar("T")

MAX_MODELS = 10_000
PAGE_CHARACTERS = 8 * 1024 * 1024
_READ_AT_ONCE = 50

# ---- documents


def list_documents(
    collection: Searchable, *, limit: int, cursor: str | None = None, filter: object | None = None
) -> DocumentPage:
    """List documents by id, from a cursor on. A page is shorter than `limit` if texts are long.

    Raises:
        InvalidCursor: not the `next` of a page.
        InvalidRequest: not a filter, a limit out of range.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit={limit}; use 1 to {MAX_LIMIT}")
    page: list[Document] = []
    characters, after = 0, None if cursor is None else _id_of(cursor)
    while len(page) < limit and characters < PAGE_CHARACTERS:
        wanted = min(_READ_AT_ONCE, limit - len(page))
        read = collection.store.list(page[-1].id if page else after, wanted, filter)
        page += read
        characters += sum(len(document.text) for document in read)
        if len(read) < wanted:
            return DocumentPage(page, None)
    more = page and collection.store.list(page[-1].id, 1, filter)
    return DocumentPage(page, cursor_after(page[-1].id) if more else None)


def cursor_after(id: str) -> str:
    """Cursor of the page whose first document follows the one of this id."""
    return base64.urlsafe_b64encode(id.encode()).decode().rstrip("=")


def _id_of(cursor: str) -> str:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise InvalidCursor(
            f"cursor={cursor[:80]!r}; use the `next` of an answer, or none to begin"
        ) from None


def delete_document(collection: Collection, id: str) -> DeleteResult:
    """Delete one document.

    Raises:
        DocumentNotFound.
    """
    receipt = collection.delete([id])
    if not receipt.deleted:
        raise DocumentNotFound(
            f"no document {id[:80]!r} in collection {collection.name!r}; nothing was deleted"
        )
    return DeleteResult(receipt.sequence, receipt.deleted, note=deletion_note(collection.store))


def delete_documents(
    collection: Collection, *, ids: Sequence[str] | None = None, filter: object | None = None
) -> DeleteResult:
    """Delete the documents of these ids, or those that match a filter.

    Raises:
        InvalidRequest: not one of the two; not a filter.
    """
    if (ids is None) == (filter is None):
        selection = "neither ids nor filter" if ids is None else "ids and filter"
        raise InvalidRequest(f"{selection}; give one of the two")
    receipt = collection.delete_matching(filter) if ids is None else collection.delete(ids)
    note = deletion_note(collection.store) if receipt.deleted else None
    return DeleteResult(receipt.sequence, receipt.deleted, receipt.missing, note)


def change_metadata(collection: Collection, id: str, changes: object) -> MetadataResult:
    """Change part of a document's metadata; see `Collection.update_metadata`."""
    receipt = collection.update_metadata(id, changes)
    return MetadataResult(receipt.sequence, id, collection.store.get(id).metadata)


def count_facets(
    collection: Searchable, fields: Sequence[str], *, filter: object | None = None, limit: int = 10
) -> Facets:
    """Count the documents with each value of some metadata fields, the most frequent values first.

    Raises:
        InvalidRequest: not a field, not a filter, a limit out of range, a misspelt field.
    """
    store = collection.store
    facets = {field: list(store.facets(field, filter, limit)) for field in fields}
    documents = store.count(filter).documents
    if not documents and (tree := filter_of(filter)) is not None:
        refuse_misspelt(store, compared_fields(tree), "filter")
    refuse_misspelt(store, [parse_field(field) for field, values in facets.items() if not values], "fields")
    return Facets(documents, facets)


# ---- models


def list_models(collection: Searchable) -> Models:
    """List every version with its record; v0 is the untrained one."""
    store, live = collection.store, collection.live_model
    models = [
        Model(one.version, one.parent, one.version == live, one.record, retired_part(store, one))
        for one in [store.model(UNTRAINED), *store.models()]
    ]
    return Models(live, models, tries_left(store))


OUTDATED_BY = "outdated_by"  # of a record: the version that became live between verdict and promotion


def require_unjudged(collection: Searchable, version: str) -> None:
    """Refuse a version that answers, or that evidence has judged: it has one verdict against a live version.

    Raises:
        ModelNotFound.
        Conflict: what to do instead.
    """
    record = collection.store.model(version).record
    if version in (UNTRAINED, collection.live_model):
        raise Conflict(
            f"{version} answers, or is always there, so that evidence decides nothing; name a version that "
            "was kept without a verdict"
        )
    gate: Any = record.get("gate") or {}
    if gate.get("p_value") is not None and record.get(OUTDATED_BY) is None:
        raise Conflict(
            f"{version} was judged already ({record.get('verdict')}); save it again with fresh evidence, or "
            "promote it"
        )


def promote(collection: Collection, version: str) -> PromotionResult:
    """Make a version live; see `Collection.promote`."""
    previous = collection.live_model
    collection.promote(version)
    return PromotionResult(version, previous, collection.store.sequence)


def rollback(collection: Collection) -> PromotionResult:
    """Make the previously live version live again; see `Collection.rollback`."""
    previous = collection.live_model
    return PromotionResult(collection.rollback(), previous, collection.store.sequence)


def rollback_rows(collection: Collection, sequence: int) -> RowsDropped:
    """Drop the rows of the query memory that operations after `sequence` wrote; versions stay."""
    return collection.remembered.drop_after(sequence)


def add_draft(
    collection: Collection, content: bytes, parent: str | None = None, owner: str = ""
) -> DraftAdded:
    """Keep a head for a while, to attend by it and to differentiate; see models/drafts.py.

    Args:
        collection: that it attends to.
        content: safetensors.
        parent: version whose encoder and documents it answers with; the live one when None.
        owner: who hands it in, and alone can ask for it.

    Raises:
        InvalidRequest, DimensionMismatch: not a head of this collection, or too large.
        Conflict: a parent with a memory, which the head would lose.
        ModelNotFound: no such parent.
    """
    head, _ = head_from_bytes(content, collection.store.dimension)
    parent = parent or collection.live_model
    record = collection.store.model(parent).record
    if "memory" in record:
        require_head_alone(parent, record)
    draft = collection.drafts.add(head, parent, owner)
    return DraftAdded(draft.id, parent, draft.size, EXPIRY_S)


def draft_bytes(collection: Collection, id: str, owner: str = "") -> bytes:
    """Tensors of a draft head, as `add_draft` and `add_head` take them.

    Raises:
        Gone: it expired, made room, or is of another owner.
    """
    return head_bytes(collection.drafts.get(id, owner).head)


def drop_draft(collection: Collection, id: str, owner: str = "") -> None:
    """Forget a draft head; one that is gone already is no error."""
    collection.drafts.drop(id, owner)


def add_head(collection: Collection, content: bytes, parent: str | None = None) -> ModelAdded:
    """Store a head that was trained elsewhere as a new version, which is not live.

    Args:
        collection: of the new version.
        content: safetensors, with `record` in their metadata.
        parent: version that it was trained from; the live one when None.

    Raises:
        InvalidRequest, DimensionMismatch: not a head of this collection.
        Conflict: too many models.
        ModelNotFound: no such parent.
    """
    head, record = head_from_bytes(content, collection.store.dimension)
    parent = parent or collection.live_model
    require_head_alone(parent, collection.store.model(parent).record)
    if (count := len(collection.store.models())) >= MAX_MODELS:
        raise Conflict(f"collection {collection.name!r} has {amount(count, 'model')}, the most that may be")
    # Under a name of its own: the record of an uploaded head is not one of this engine's gate.
    version = collection.add_model(head, {"scope": "uploaded", "uploaded": record}, parent=parent)
    return ModelAdded(version, parent, collection.store.sequence)


# ---- declared calls

ANSWERS: dict[type[Call[Any]], Callable[..., Any]] = {
    operations.DescribeCollection: Collection.describe,
    operations.DeleteDocument: delete_document,
    operations.DeleteDocuments: delete_documents,
    operations.UpdateMetadata: change_metadata,
    operations.ListDocuments: list_documents,
    operations.CountFacets: count_facets,
    operations.ListModels: list_models,
    operations.Promote: promote,
    operations.Rollback: rollback,
    operations.RollbackRows: rollback_rows,
    operations.DeleteModel: Collection.delete_model,
}
"""Functions whose parameters are a collection and the call's own fields."""


def collection_of(call: Call[Any]) -> str:
    """Return the name of the collection that a call is about: its path begins with it."""
    return getattr(call, call.place.in_path[0])


def answer(collection: Searchable, call: Call[T]) -> T:
    """Carry out a call of `ANSWERS` on its collection; raises what its function raises."""
    own = call.arguments()
    del own[call.place.in_path[0]]
    return ANSWERS[type(call)](collection, **own)


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
