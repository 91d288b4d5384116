"""Calls about documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from dsearch.declared import Values
from dsearch.fields import (
    MAX_DELETED_IDS,
    DocumentId,
    EpisodeName,
    FieldPath,
    Filter,
    Metadata,
    PageSize,
)
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
    """Return one document.

    Args:
        collection: its name.
        id: of the document.
        episode: name of the task for which the document is read.
    """

    collection: str
    id: str
    _: KW_ONLY
    episode: EpisodeName | None = None


@call("DELETE", "/v1/collections/{collection}/documents/{id:path}", scope="write")
class DeleteDocument(Call[DeleteResult]):
    """Delete one document; gone from every later search on return.

    Shards of a cluster answer with their release until the next publishing: `note` says so.
    """

    collection: str
    id: str


@call("POST", "/v1/collections/{collection}/documents/delete", scope="write")
class DeleteDocuments(Call[DeleteResult]):
    """Delete the documents of these ids, or those that match a filter; gone on return.

    Shards of a cluster answer with their release until the next publishing: `note` says so.

    Args:
        collection: its name.
        ids: give these or a filter.
        filter: condition on metadata; see `SearchOptions`.
    """

    collection: str
    _: KW_ONLY
    ids: Annotated[Sequence[DocumentId], Values(shortest=1, longest=MAX_DELETED_IDS)] | None = None
    filter: Filter | None = None


@call(
    "PATCH",
    "/v1/collections/{collection}/documents/{id:path}",
    scope="write",
    renamed={"changes": "metadata"},
)
class UpdateMetadata(Call[MetadataResult]):
    """Change part of a document's metadata; its text and embedding stay.

    Args:
        collection: its name.
        id: of the document.
        changes: JSON Merge Patch (RFC 7396): objects are merged, null removes a key, others replace.
    """

    collection: str
    id: str
    changes: Metadata


@call("GET", "/v1/collections/{collection}/documents", query=("limit", "cursor", "filter"))
class ListDocuments(Call[DocumentPage]):
    """List documents by id. Pages are shorter than `limit` if texts are long; follow `next`.

    Args:
        collection: its name.
        limit: most documents of a page.
        cursor: `next` of the page before.
        filter: what metadata must meet.
    """

    collection: str
    _: KW_ONLY
    limit: PageSize = 100
    cursor: Annotated[str, Values("the `next` of an answer", longest=1024)] | None = None
    filter: Filter | None = None


@call("POST", "/v1/collections/{collection}/facets", scope="read")
class CountFacets(Call[Facets]):
    """Count the documents with each value of some metadata fields, among those that match a filter.

    Args:
        collection: its name.
        fields: dotted paths; each element of a list counts.
        filter: what metadata must meet.
        limit: values of each field, the most frequent first.
    """

    collection: str
    fields: Annotated[Sequence[FieldPath], Values(shortest=1, longest=16)]
    _: KW_ONLY
    filter: Filter | None = None
    limit: Annotated[int, Values("an integer from 1 to 100", low=1, high=100)] = 10
