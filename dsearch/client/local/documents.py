"""Collections and documents of an engine in this process; see `client/operations/documents.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Any

from dsearch import results
from dsearch.client.options import Filter
from dsearch.client.wire import BATCH_DOCUMENTS, SHOWN_PROBLEMS, numbers
from dsearch.engine import PassageOptions, SearchEngine, calls, statistics
from dsearch.engine.episodes import Episodes
from dsearch.engine.indexing.own_vectors import embedding_problems
from dsearch.errors import DsearchError, InvalidDocument, InvalidRequest, amount
from dsearch.store import CheckedDocuments
from dsearch.types import Document, EmbeddedDocument

if TYPE_CHECKING:
    from dsearch.client.wire import Vectors


class LocalDocuments:
    """The calls about collections and documents; each is described in `Client`."""

    engine: SearchEngine
    episodes: Episodes

    # ---- collections

    def collections(self) -> list[results.CollectionInfo]:
        """Every collection that can be opened, by name."""
        infos: list[results.CollectionInfo] = []
        for name in self.engine.names():
            try:
                infos.append(self.collection(name))
            except DsearchError:  # damaged: its next use reports it
                continue
        return infos

    def collection(self, name: str) -> results.CollectionInfo:
        """Describe a collection."""
        return self.engine.collection(name).describe()

    def statistics(self, name: str) -> dict[str, Any]:
        """Return the statistics of a collection: generations, changes since, keys and their recall, bytes."""
        return statistics(self.engine.collection(name))

    def create_collection(
        self,
        name: str,
        *,
        language: str | None = None,
        passages: Mapping[str, Any] | None = None,
        kind: str | None = None,
        dimension: int | None = None,
        search_fields: Sequence[str] | None = None,
    ) -> results.CollectionInfo:
        """Make a collection for the engine's encoder; one that is there stays. Options as for `Client`."""
        cut = None if passages is None else PassageOptions(**passages)
        created = self.engine.collection_or_new(
            name,
            language=language,
            search_fields=search_fields,
            passages=cut,
            kind=kind,
            dimension=dimension,
        )
        return created.describe()

    def delete_collection(self, name: str) -> None:
        """Delete a collection with everything in it."""
        self.engine.drop(name)

    def aliases(self) -> dict[str, str]:
        """Alias → the collection that it stands for."""
        return self.engine.aliases()

    def set_alias(self, alias: str, collection: str) -> results.AliasSet:
        """Let an alias stand for a collection from now on, whatever it stood for."""
        name = self.engine.collection(collection).name
        return results.AliasSet(alias, name, self.engine.set_alias(alias, name))

    def drop_alias(self, alias: str) -> None:
        """Remove an alias; the collection stays."""
        self.engine.drop_alias(alias)

    # ---- documents

    def upsert(
        self,
        collection: str,
        documents: Iterable[Document | Mapping[str, Any]],
        *,
        embeddings: Vectors | None = None,
    ) -> results.WriteResult:
        """Insert documents, or replace those of the same ids; durable and searchable on return."""
        opened = self.engine.collection(collection)
        if embeddings is not None:
            rows, listed = numbers(embeddings), list(documents)
            if len(rows) != len(listed):
                raise InvalidRequest(
                    f"{amount(len(rows), 'embedding')} for {amount(len(listed), 'document')}; give one each"
                )
            documents = [_document(bare, row.tolist()) for bare, row in zip(listed, rows, strict=True)]
        inserted = updated = unchanged = refused = 0
        problems: list[results.RefusedDocument] = []
        seen: dict[str, int] = {}
        numbered = iter(enumerate(documents, start=1))
        while batch := list(islice(numbered, BATCH_DOCUMENTS)):
            good, lines = CheckedDocuments(), list[int]()
            for number, item in batch:
                try:
                    _add(good, item, number, seen)
                    lines.append(number)
                except DsearchError as error:
                    refused += 1
                    problems.append(results.RefusedDocument(number, error.code, str(error)))
            wrong = embedding_problems(opened.store, good)
            for place, problem in wrong.items():
                refused += 1
                detail = f"the document (id {good[place].id[:80]!r}) {problem}"
                problems.append(results.RefusedDocument(lines[place], problem.code, detail))
                del seen[good[place].id]
            if wrong and embeddings is not None:
                raise InvalidDocument(problems[-len(wrong)].detail)  # the first of this batch
            if good := good.without(wrong):
                receipt = opened.upsert(good)
                inserted, updated = inserted + receipt.inserted, updated + receipt.updated
                unchanged += receipt.unchanged
        if refused and not inserted + updated + unchanged:
            raise InvalidDocument(
                f"none of {amount(refused, 'document')} can be stored; the first: {problems[0].detail}"
            )
        sequence = opened.store.sequence
        return results.WriteResult(sequence, inserted, updated, unchanged, refused, problems[:SHOWN_PROBLEMS])

    def get(self, collection: str, id: str, *, episode: str | None = None) -> Document:
        """One document, read for the task `episode` if one is named."""
        opened = self.engine.collection(collection)
        document = opened.store.get(id)
        if episode is not None:
            self.episodes.add_reading("", episode, opened.name, id)
        return document

    def delete(self, collection: str, id: str) -> results.DeleteResult:
        """Delete one document; gone from every later search on return."""
        return calls.delete_document(self.engine.collection(collection), id)

    def delete_many(
        self, collection: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
    ) -> results.DeleteResult:
        """Delete the documents of these ids, or those that a filter finds."""
        return calls.delete_documents(self.engine.collection(collection), ids=ids, filter=filter)

    def update_metadata(self, collection: str, id: str, changes: Mapping[str, Any]) -> results.MetadataResult:
        """Change part of a document's metadata (JSON Merge Patch, RFC 7396)."""
        return calls.change_metadata(self.engine.collection(collection), id, changes)

    def documents(
        self,
        collection: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        filter: Filter | None = None,
    ) -> results.DocumentPage:
        """Documents by id, from `next` of the page before on."""
        opened = self.engine.collection(collection)
        return calls.list_documents(opened, limit=limit, cursor=cursor, filter=filter)


def _document(source: Document | Mapping[str, Any], embedding: list[float] | None = None) -> Document:
    """A document as the engine takes it, with its embedding if it has one.

    Raises:
        InvalidDocument: an unknown field.
    """
    if isinstance(source, Document):
        if embedding is None:
            return source
        return EmbeddedDocument(
            source.id, source.text, source.title, source.metadata, source.value, embedding=embedding
        )
    names = [field.name for field in fields(EmbeddedDocument)]
    if unknown := [str(name) for name in source if name not in names]:
        raise InvalidDocument(f"unknown field {unknown[0][:80]!r}; use {', '.join(names)}")
    content = {"id": "", "text": "", **source}
    if embedding is not None:
        content["embedding"] = embedding
    if content.get("embedding") is None:
        content.pop("embedding", None)
        return Document(**content)
    return EmbeddedDocument(**content)


def _add(
    good: CheckedDocuments, item: Document | Mapping[str, Any], number: int, seen: dict[str, int]
) -> None:
    """Take a document into the batch that is stored next.

    Raises:
        InvalidDocument: it cannot be stored, or one of this id came before.
    """
    document = _document(item)
    if isinstance(document.id, str) and document.id in seen:  # other types are reported below
        raise InvalidDocument(
            f"id {document.id[:80]!r} stands on line {seen[document.id]} too, which came first; "
            "send each id once"
        )
    good.add(document)
    seen[document.id] = number
