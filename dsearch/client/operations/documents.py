"""The calls that keep collections and documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsearch.client import wire
from dsearch.client.flow import NDJSON, TENSORS, Flow, Request, operation
from dsearch.client.options import Filter
from dsearch.client.wire import (
    added,
    batches,
    json_of,
    path_of,
    question,
    quoted,
    renumbered,
    tensor_batches,
)
from dsearch.errors import InvalidDocument, amount
from dsearch.results import (
    AliasSet,
    CollectionInfo,
    DeleteResult,
    DocumentPage,
    MetadataResult,
    RefusedDocument,
    WriteResult,
)
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.client.wire import Vectors


class DocumentOperations:
    """Collections and their documents."""

    @operation
    def ready(self) -> Flow[bool]:
        """Return True if the server answers searches now; raise Unavailable if it does not. `GET /readyz`"""
        answer = yield Request("GET", "/readyz")
        return wire.content_of(answer)["status"] == "ready"

    @operation
    def collections(self) -> Flow[list[CollectionInfo]]:
        """List every collection that can be opened, by name. `GET /v1/collections`"""
        answer = yield Request("GET", "/v1/collections")
        entries = wire.content_of(answer)["collections"]
        return [wire.parse(CollectionInfo, entry) for entry in entries if "problem" not in entry]

    @operation
    def collection(self, name: str) -> Flow[CollectionInfo]:
        """Describe a collection. `GET /v1/collections/{name}`"""
        answer = yield Request("GET", path_of(name))
        return wire.parse(CollectionInfo, wire.content_of(answer))

    @operation
    def statistics(self, name: str) -> Flow[dict[str, Any]]:
        """Return the statistics of a collection: generations, changes since, keys, bytes. `GET …/stats`"""
        answer = yield Request("GET", path_of(name, "stats"))
        return wire.content_of(answer)

    @operation
    def create_collection(
        self,
        name: str,
        *,
        language: str | None = None,
        passages: Mapping[str, Any] | None = None,
        kind: str | None = None,
        dimension: int | None = None,
        search_fields: Sequence[str] | None = None,
    ) -> Flow[CollectionInfo]:
        """Create a collection for the server's encoder; an existing one is unchanged. `PUT …/{name}`

        `language` is whose stems and stop words keyword search knows; English when None. `passages` says how
        long documents are cut, `{"tokens": 128, "overlap": 16}` or `{"none": True}`; into passages as long as
        the encoder's window when None. `kind` is how keys are kept; compared exactly when None.
        `dimension` is the length of embeddings of your own, which then come with the documents (`upsert`).
        `search_fields` are metadata fields whose strings keyword search has as words.
        """
        creation = {
            "language": language,
            "passages": passages,
            "kind": kind,
            "dimension": dimension,
            "search_fields": search_fields,
        }
        values = {name: value for name, value in creation.items() if value is not None}
        body = json_of(values) if values else None
        answer = yield Request("PUT", path_of(name), {}, body, writes=True)
        return wire.parse(CollectionInfo, wire.content_of(answer))

    @operation
    def delete_collection(self, name: str) -> Flow[None]:
        """Delete a collection with everything in it. `DELETE /v1/collections/{name}`"""
        yield Request("DELETE", path_of(name), writes=True)

    @operation
    def aliases(self) -> Flow[dict[str, str]]:
        """Return the map from alias to collection. `GET /v1/aliases`"""
        answer = yield Request("GET", "/v1/aliases")
        return wire.content_of(answer)["aliases"]

    @operation
    def set_alias(self, alias: str, collection: str) -> Flow[AliasSet]:
        """Point an alias at a collection, whatever it pointed at. `PUT …/{alias}`"""
        body = json_of({"collection": collection})
        answer = yield Request("PUT", f"/v1/aliases/{quoted(alias)}", {}, body, writes=True)
        return wire.parse(AliasSet, wire.content_of(answer))

    @operation
    def drop_alias(self, alias: str) -> Flow[None]:
        """Remove an alias; the collection stays. `DELETE /v1/aliases/{alias}`"""
        yield Request("DELETE", f"/v1/aliases/{quoted(alias)}", writes=True)

    @operation
    def upsert(
        self,
        collection: str,
        documents: Iterable[Document | Mapping[str, Any]],
        *,
        embeddings: Vectors | None = None,
    ) -> Flow[WriteResult]:
        """Insert documents, or replace those of the same ids; durable and searchable on return.

        `documents` may be an iterator of any length: it is read as it is sent, in batches of at most 1000
        documents and about 1 MiB, each tried again by itself. A document that cannot be stored is left out
        and listed, by its number counted from 1; when none at all can be, InvalidDocument is raised.
        `PUT …/documents`

        Args:
            collection: its name.
            documents: they may carry embeddings of their own (`EmbeddedDocument`, or `embedding`), in a
                collection that was created with a dimension.
            embeddings: of all documents, [documents, dimension], sent as tensors; a batch with one that
                cannot be stored is then refused as a whole.
        """
        total = WriteResult(0, 0, 0, 0, 0, [])

        def refuse(problem: RefusedDocument) -> None:
            nonlocal total
            total = added(total, WriteResult(total.sequence, 0, 0, 0, 1, [problem]))

        parts, kind = batches(documents, refuse), NDJSON
        if embeddings is not None:
            parts, kind = tensor_batches(documents, embeddings), TENSORS
        for numbers, body in parts:
            try:
                answer = yield Request("PUT", path_of(collection, "documents"), {}, body, kind, writes=True)
                content = wire.content_of(answer)
            except InvalidDocument as error:  # of every line of this batch
                content = wire.written_before(error)
                if content is None:
                    raise
            total = added(total, renumbered(wire.parse(WriteResult, content), numbers))
        if total.refused and not total.inserted + total.updated + total.unchanged:
            raise InvalidDocument(
                f"none of {amount(total.refused, 'document')} can be stored; the first: "
                f"{total.problems[0].detail}"
            )
        return total

    @operation
    def get(self, collection: str, id: str, *, episode: str | None = None) -> Flow[Document]:
        """Return one document, read for the task `episode` if one is named. `GET …/documents/{id}`"""
        query = {} if episode is None else {"episode": episode}
        answer = yield Request("GET", path_of(collection, "documents", id), query)
        return wire.parse(Document, wire.content_of(answer))

    @operation
    def delete(self, collection: str, id: str) -> Flow[DeleteResult]:
        """Delete one document; gone from every later search on return. `DELETE …/documents/{id}`"""
        answer = yield Request("DELETE", path_of(collection, "documents", id), writes=True)
        return wire.parse(DeleteResult, wire.content_of(answer))

    @operation
    def delete_many(
        self, collection: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
    ) -> Flow[DeleteResult]:
        """Delete the documents of these ids, or those that match a filter. `POST …/documents/delete`"""
        selection = {"ids": None if ids is None else list(ids), "filter": filter}
        answer = yield replace(question(collection, "documents/delete", selection), writes=True)
        return wire.parse(DeleteResult, wire.content_of(answer))

    @operation
    def update_metadata(self, collection: str, id: str, changes: Mapping[str, Any]) -> Flow[MetadataResult]:
        """Change part of a document's metadata (JSON Merge Patch, RFC 7396). `PATCH …/documents/{id}`"""
        body = json_of({"metadata": changes}, InvalidDocument)
        answer = yield Request("PATCH", path_of(collection, "documents", id), {}, body, writes=True)
        return wire.parse(MetadataResult, wire.content_of(answer))

    @operation
    def documents(
        self,
        collection: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        filter: Filter | None = None,
    ) -> Flow[DocumentPage]:
        """List documents by id, from `next` of the previous page on. `GET …/documents`"""
        parameters: dict[str, str | int] = {"limit": limit}
        if cursor is not None:
            parameters["cursor"] = cursor
        if filter is not None:
            parameters["filter"] = json_of(filter).decode()
        answer = yield Request("GET", path_of(collection, "documents"), parameters)
        return wire.parse(DocumentPage, wire.content_of(answer))
