"""Calls about documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from dsearch.operations.declared import Call, call
from dsearch.results import DeleteResult, DocumentPage, Facets, MetadataResult, WriteResult
from dsearch.types import Document


@call("PUT", "/v1/collections/{collection}/documents", scope="write")
class Upsert(Call[WriteResult]):
    """Insert documents, or replace those of the same ids; durable and searchable on return.

    `documents` may be an iterator of any length: it is read as it is stored, in batches of at most 1000
    documents (over HTTP of about 1 MiB too, each tried again by itself). A document that cannot be stored is
    left out and listed, by its number counted from 1; when none at all can be, InvalidDocument is raised.

    Args:
        collection: its name.
        documents: they may carry embeddings of their own (`EmbeddedDocument`, or `embedding`), in a
            collection that was created with a dimension.
        embeddings: of all documents, [documents, dimension]; a batch with one that cannot be stored is then
            refused as a whole.
    """

    collection: str
    documents: Iterable[Document | Mapping[str, Any]]
    _: KW_ONLY
    embeddings: Any = None


@call("GET", "/v1/collections/{collection}/documents/{id:path}", query=("episode",))
class GetDocument(Call[Document]):
    """Return one document, read for the task `episode` if one is named."""

    collection: str
    id: str
    _: KW_ONLY
    episode: str | None = None


@call("DELETE", "/v1/collections/{collection}/documents/{id:path}", scope="write")
class DeleteDocument(Call[DeleteResult]):
    """Delete one document; gone from every later search on return."""

    collection: str
    id: str


@call("POST", "/v1/collections/{collection}/documents/delete", scope="write")
class DeleteDocuments(Call[DeleteResult]):
    """Delete the documents of these ids, or those that match a filter."""

    collection: str
    _: KW_ONLY
    ids: Sequence[str] | None = None
    filter: object | None = None


@call(
    "PATCH",
    "/v1/collections/{collection}/documents/{id:path}",
    scope="write",
    renamed={"changes": "metadata"},
)
class UpdateMetadata(Call[MetadataResult]):
    """Change part of a document's metadata (JSON Merge Patch, RFC 7396)."""

    collection: str
    id: str
    changes: Mapping[str, Any]


@call("GET", "/v1/collections/{collection}/documents", query=("limit", "cursor", "filter"))
class ListDocuments(Call[DocumentPage]):
    """List documents by id, from `next` of the previous page on."""

    collection: str
    _: KW_ONLY
    limit: int = 100
    cursor: str | None = None
    filter: object | None = None


@call("POST", "/v1/collections/{collection}/facets", scope="read")
class CountFacets(Call[Facets]):
    """Count the documents with each value of these metadata fields."""

    collection: str
    fields: Sequence[str]
    _: KW_ONLY
    filter: object | None = None
    limit: int = 10
