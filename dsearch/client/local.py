"""`LocalEngine`: the calls of the clients on an engine in this process, with the same answers.

    with dsearch.open("index") as engine:
        print(engine.search("papers", "attention as retrieval").hits)

So a program can be written against a folder and deployed against a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import torch

from dsearch.client import answers
from dsearch.client.asking import BATCH_DOCUMENTS, SHOWN_PROBLEMS
from dsearch.client.local_feedback import record_feedback
from dsearch.client.options import AttendOptions, DifferentiableOptions, Filter, FindOptions, Part
from dsearch.client.tensors import head_file, numbers, ragged
from dsearch.engine import (
    UNTRAINED,
    LayerOptions,
    PassageOptions,
    Question,
    SearchEngine,
    attention_parts,
    head_from_bytes,
    head_tensors,
    require_head_alone,
    statistics,
    vjp,
)
from dsearch.errors import DocumentNotFound, DsearchError, InvalidDocument, InvalidRequest
from dsearch.store.validate import prepare
from dsearch.types import Document, SearchResult

if TYPE_CHECKING:
    from dsearch.client.tensors import Rows, Vectors
    from dsearch.encoder import TextEncoder


def open(
    home: Path | str, *, readonly: bool = False, encoder: Callable[[], TextEncoder] | None = None
) -> LocalEngine:
    """The engine of a home, with the methods of `Client`; arguments as for `SearchEngine`.

    Raises:
        HomeLocked: another process writes to this home; open it readonly, or use a client of its server.
    """
    return LocalEngine(SearchEngine(home, readonly=readonly, encoder=encoder))


class LocalEngine:
    """What `Client` has, without a server; each method is described there.

    Args:
        engine: closed with this.
    """

    def __init__(self, engine: SearchEngine):
        self.engine = engine

    # ---- the server

    def ready(self) -> bool:
        """Always True."""
        return True

    # ---- collections

    def collections(self) -> list[answers.CollectionInfo]:
        """Every collection that can be opened, by name."""
        found: list[answers.CollectionInfo] = []
        for name in self.engine.names():
            try:
                found.append(self.collection(name))
            except DsearchError:  # damaged: it says so when it is asked for
                continue
        return found

    def collection(self, name: str) -> answers.CollectionInfo:
        """What a collection is and holds."""
        return _made(answers.CollectionInfo, self.engine.collection(name).describe())

    def statistics(self, name: str) -> dict[str, Any]:
        """What it costs: generations, what has changed since, keys and their recall, bytes."""
        return statistics(self.engine.collection(name))

    def create_collection(
        self,
        name: str,
        *,
        language: str | None = None,
        passages: Mapping[str, Any] | None = None,
        kind: str | None = None,
    ) -> answers.CollectionInfo:
        """Make a collection for the engine's encoder; one that is there stays. Options as for `Client`."""
        cut = None if passages is None else PassageOptions(**passages)
        made = self.engine.collection_or_new(name, language=language, passages=cut, kind=kind)
        return _made(answers.CollectionInfo, made.describe())

    def delete_collection(self, name: str) -> None:
        """Delete a collection with everything in it."""
        self.engine.drop(name)

    # ---- documents

    def upsert(self, collection: str, documents: Iterable[Document | Mapping[str, Any]]) -> answers.Written:
        """Insert documents, or replace those of the same ids; durable and searchable on return."""
        opened = self.engine.collection(collection)
        inserted = updated = unchanged = refused = 0
        problems: list[answers.Refused] = []
        seen: dict[str, int] = {}
        numbered = iter(enumerate(documents, start=1))
        while batch := list(islice(numbered, BATCH_DOCUMENTS)):
            good: list[Document] = []
            for number, given in batch:
                try:
                    good.append(_checked(given, number, seen))
                except DsearchError as error:
                    refused += 1
                    detail = str(error).replace("document 0 (", "the document (", 1)
                    problems.append(answers.Refused(number, error.code, detail))
            if good:
                receipt = opened.upsert(good)
                inserted, updated = inserted + receipt.inserted, updated + receipt.updated
                unchanged += receipt.unchanged
        if refused and not inserted + updated + unchanged:
            raise InvalidDocument(
                f"none of {refused} documents can be stored; the first: {problems[0].detail}"
            )
        sequence = opened.store.sequence
        return answers.Written(sequence, inserted, updated, unchanged, refused, problems[:SHOWN_PROBLEMS])

    def get(self, collection: str, id: str) -> Document:
        """One document."""
        return self.engine.collection(collection).store.get(id)

    def delete(self, collection: str, id: str) -> answers.Deleted:
        """Delete one document; gone from every later search on return."""
        receipt = self.engine.collection(collection).delete([id])
        if not receipt.deleted:
            raise DocumentNotFound(
                f"no document {id[:80]!r} in collection {collection!r}; nothing was deleted"
            )
        return answers.Deleted(receipt.sequence, receipt.deleted)

    def delete_many(
        self, collection: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
    ) -> answers.Deleted:
        """Delete the documents of these ids, or those that a filter finds."""
        opened = self.engine.collection(collection)
        if (ids is None) == (filter is None):
            given = "neither ids nor filter" if ids is None else "ids and filter"
            raise InvalidRequest(f"{given}; give one of the two")
        receipt = opened.delete_matching(filter) if ids is None else opened.delete(ids)
        return answers.Deleted(receipt.sequence, receipt.deleted, receipt.missing)

    def update_metadata(self, collection: str, id: str, changes: Mapping[str, Any]) -> answers.Changed:
        """Change part of a document's metadata (JSON Merge Patch, RFC 7396)."""
        opened = self.engine.collection(collection)
        receipt = opened.update_metadata(id, changes)
        return answers.Changed(receipt.sequence, id, opened.store.get(id).metadata)

    def documents(
        self,
        collection: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        filter: Filter | None = None,
    ) -> answers.DocumentPage:
        """Documents by id, from `next` of the page before on."""
        found = self.engine.collection(collection).store.list(cursor, limit + 1, filter)
        page = list(found[:limit])
        return answers.DocumentPage(page, page[-1].id if len(found) > limit else None)

    # ---- search

    def search(self, collection: str, query: str, **options: Unpack[FindOptions]) -> SearchResult:
        """The documents that a query attends to most."""
        return self.engine.collection(collection).search(query, **_without_explore(options))

    def search_batch(
        self, collection: str, queries: Sequence[str], **options: Unpack[FindOptions]
    ) -> list[SearchResult]:
        """Many queries, answered from one state."""
        opened = self.engine.collection(collection)
        return opened.search_batch(queries, coverage=None, **_without_explore(options))

    def similar(
        self,
        collection: str,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        **options: Unpack[FindOptions],
    ) -> SearchResult:
        """The documents most like some ids and least like others, themselves left out."""
        opened = self.engine.collection(collection)
        return opened.similar(like, unlike=unlike, query=query, **_without_explore(options))

    def facets(
        self, collection: str, fields: Sequence[str], *, filter: Filter | None = None, limit: int = 10
    ) -> answers.Facets:
        """How many documents have which values of these metadata fields."""
        store = self.engine.collection(collection).store
        counted = {
            name: [answers.FacetValue(one.value, one.documents) for one in store.facets(name, filter, limit)]
            for name in fields
        }
        return answers.Facets(store.count(filter).documents, counted)

    def feedback(self, collection: str, events: Sequence[Mapping[str, Any]]) -> answers.Recorded:
        """Tell what people clicked or judged, by `user_query`: pages are remembered by servers alone."""
        return record_feedback(self.engine.collection(collection), events)

    # ---- attention

    def attend(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        include: Sequence[Part] = (),
        certify: int | None = None,
        **options: Unpack[DifferentiableOptions],
    ) -> answers.Attention:
        """Attention itself: context, weights, scores and ids."""
        question = _question(queries, vectors, options)
        opened = self.engine.collection(collection)
        found = attention_parts(opened, question, include=set(include), certify=certify)
        certificates = None
        if (given := found.certificate) is not None:
            certificates = [answers.Proof(bool(proved), given.reason) for proved in given.proved]
        return answers.Attention(
            found.ids,
            found.stamp,
            found.hops,
            found.temperature,
            found.mixture,
            **found.arrays,
            certificates=certificates,
        )

    def vjp(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        context: Vectors | None = None,
        weights: Rows | None = None,
        scores: Rows | None = None,
        head: bool = True,
        **options: Unpack[DifferentiableOptions],
    ) -> answers.Vjp:
        """The gradients of a loss of what `attend` answered; asked as it was, with its stamp."""
        found = vjp(
            self.engine.collection(collection),
            _question(queries, vectors, options),
            context=None if context is None else numbers(context),
            weights=None if weights is None else [row.tolist() for row in ragged(weights)],
            scores=None if scores is None else [row.tolist() for row in ragged(scores)],
        )
        return answers.Vjp(found.stamp, found.states, found.head if head else {})

    def predict(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        field: str,
        evidence: int = 10,
        **options: Unpack[AttendOptions],
    ) -> answers.Predictions:
        """A field of the documents, pooled by the attention of each query."""
        asked = queries if vectors is None else torch.as_tensor(numbers(vectors), dtype=torch.float32)
        found = self.engine.collection(collection).predict(
            [] if asked is None else asked, field=field, evidence=evidence, **options
        )
        predictions = [
            answers.Prediction(
                **{
                    **{one.name: getattr(prediction, one.name) for one in fields(prediction)},
                    "evidence": [answers.Evidence(**asdict(shown)) for shown in prediction.evidence],
                }
            )
            for prediction in found.predictions
        ]
        return answers.Predictions(found.stamp, predictions)

    # ---- models

    def models(self, collection: str) -> answers.Models:
        """Every version with what is known of it; v0 is the untrained one."""
        opened = self.engine.collection(collection)
        live = opened.live_model
        known = [opened.store.model(UNTRAINED), *opened.store.models()]
        return answers.Models(
            live, [answers.Model(one.version, one.parent, one.version == live, one.record) for one in known]
        )

    def promote(self, collection: str, version: str) -> answers.Promoted:
        """Let a version answer from now on; to undo it promote `previous`."""
        opened = self.engine.collection(collection)
        previous = opened.live_model
        opened.promote(version)
        return answers.Promoted(version, previous, opened.store.sequence)

    def rollback(self, collection: str) -> answers.Promoted:
        """Let the version answer again that did before the live one."""
        opened = self.engine.collection(collection)
        previous = opened.live_model
        version = opened.rollback()
        return answers.Promoted(version, previous, opened.store.sequence)

    def delete_model(self, collection: str, version: str) -> None:
        """Delete a version that neither answers nor is another's parent."""
        self.engine.collection(collection).delete_model(version)

    def head(self, collection: str, version: str) -> dict[str, Any]:
        """The tensors of a version's head, as NumPy arrays by name."""
        tensors = head_tensors(self.engine.collection(collection).head(version))
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}

    def add_model(
        self,
        collection: str,
        tensors: Mapping[str, Any],
        *,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> answers.ModelAdded:
        """Keep a head that was trained elsewhere as a new version, which is not live."""
        opened = self.engine.collection(collection)
        head, given = head_from_bytes(head_file(tensors, record), opened.store.dimension)
        parent = parent or opened.live_model
        require_head_alone(parent, opened.store.model(parent).record)
        version = opened.add_model(head, {"scope": "uploaded", "uploaded": given}, parent=parent)
        return answers.ModelAdded(version, parent, opened.store.sequence)

    # ---- the end

    def close(self) -> None:
        """Close the engine; safe to call twice."""
        self.engine.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _question(queries: Sequence[str] | None, vectors: Any, options: DifferentiableOptions) -> Question:
    shared = LayerOptions.__optional_keys__
    layer: Any = {name: value for name, value in options.items() if name in shared and value is not None}
    own: Any = {name: value for name, value in options.items() if name not in shared and value is not None}
    states = None if vectors is None else torch.as_tensor(numbers(vectors))
    return Question(states=states, texts=queries, options=layer, **own)


def _without_explore(options: FindOptions) -> Any:
    """Options as the engine takes them; the coin of `explore` is tossed by servers, which remember pages."""
    return {name: value for name, value in options.items() if name != "explore"}


def _checked(given: Document | Mapping[str, Any], number: int, seen: dict[str, int]) -> Document:
    """A document that the store takes.

    Raises:
        InvalidDocument: it does not, or one of this id came before.
    """
    if isinstance(given, Document):
        document = given
    else:
        known = [field.name for field in fields(Document)]
        if unknown := [str(name) for name in given if name not in known]:
            raise InvalidDocument(f"unknown field {unknown[0][:80]!r}; use {', '.join(known)}")
        document = Document(**{"id": "", "text": "", **given})
    prepare([document])
    if document.id in seen:
        raise InvalidDocument(
            f"id {document.id[:80]!r} stands on line {seen[document.id]} too, which was stored; "
            "send each id once"
        )
    seen[document.id] = number
    return document


def _made(kind: type[Any], content: Mapping[str, Any]) -> Any:
    """`kind` of what it knows of `content`."""
    return kind(**{field.name: content[field.name] for field in fields(kind)})
