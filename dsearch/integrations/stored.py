"""The calls that adapters share: write documents, delete some, read some, read all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsearch.errors import DocumentNotFound, InvalidRequest, amount
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.client import Client, LocalEngine

PAGE_DOCUMENTS = 500
_IDS_AT_ONCE = 1000


def write_documents(engine: Client | LocalEngine, collection: str, documents: Sequence[Document]) -> None:
    """Store documents, or replace those of the same ids; they can be found on return.

    Raises:
        InvalidRequest: some cannot be stored; the others are.
    """
    if not documents:
        return
    written = engine.upsert(collection, documents)
    if written.problems:
        problem = written.problems[0]
        raise InvalidRequest(
            f"{amount(written.refused, 'document was', 'documents were')} not stored; the first: "
            f"{problem.detail}"
        )


def delete_documents(engine: Client | LocalEngine, collection: str, ids: Sequence[str]) -> None:
    """Delete the documents of these ids, however many; missing ones are no error."""
    for start in range(0, len(ids), _IDS_AT_ONCE):  # a server takes no request of any length
        engine.delete_many(collection, ids=ids[start : start + _IDS_AT_ONCE])


def documents_of(engine: Client | LocalEngine, collection: str, ids: Sequence[str]) -> Iterator[Document]:
    """Documents of these ids, without those that are missing."""
    for id in ids:
        try:
            yield engine.get(collection, id)
        except DocumentNotFound:
            continue


def every_document(
    engine: Client | LocalEngine, collection: str, filter: dict[str, Any] | None = None
) -> Iterator[Document]:
    """All documents that meet a filter, by id."""
    cursor: str | None = None
    while True:
        page = engine.documents(collection, limit=PAGE_DOCUMENTS, cursor=cursor, filter=filter)
        yield from page.documents
        cursor = page.next
        if cursor is None:
            return


def literal_field(name: str) -> str:
    r"""Field of a filter that stands for one key, though it has dots or is named like an operator.

    >>> literal_field("dc.title"), literal_field("or")
    ('dc\\.title', '\\or')
    """
    escaped = name.replace("\\", "\\\\").replace(".", "\\.")
    return f"\\{escaped}" if escaped in ("and", "or", "not") else escaped
