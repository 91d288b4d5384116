"""Collections, documents and versions of an engine in this process; see `dsearch/operations/`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from dsearch import operations, results
from dsearch.client.local.engine import handles
from dsearch.client.wire import BATCH_DOCUMENTS, SHOWN_PROBLEMS, head_file, numbers
from dsearch.engine import PassageOptions, calls, statistics
from dsearch.engine.indexing.own_vectors import embedding_problems
from dsearch.errors import DsearchError, InvalidDocument, InvalidRequest, amount
from dsearch.store import CheckedDocuments
from dsearch.types import Document, EmbeddedDocument, document_members, id_text

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.client.local.engine import LocalEngine

# ---- collections


@handles(operations.Ready)
def ready(_: LocalEngine, __: operations.Ready) -> bool:
    """Return True: an engine that is open answers."""
    return True


@handles(operations.ListCollections)
def list_collections(local: LocalEngine, _: operations.ListCollections) -> list[results.CollectionInfo]:
    """List those that can be opened."""
    infos: list[results.CollectionInfo] = []
    for name in local.engine.names():
        try:
            infos.append(local.engine.collection(name).describe())
        except DsearchError:  # damaged: its next use reports it
            continue
    return infos


@handles(operations.ReadStatistics)
def read_statistics(local: LocalEngine, call: operations.ReadStatistics) -> dict[str, Any]:
    return statistics(local.engine.collection(call.name))


@handles(operations.CreateCollection)
def create_collection(local: LocalEngine, call: operations.CreateCollection) -> results.CollectionInfo:
    created = local.engine.collection_or_new(
        call.name,
        language=call.language,
        search_fields=call.search_fields,
        passages=None if call.passages is None else PassageOptions(**call.passages),
        kind=call.kind,
        dimension=call.dimension,
    )
    return created.describe()


@handles(operations.DeleteCollection)
def delete_collection(local: LocalEngine, call: operations.DeleteCollection) -> None:
    local.engine.drop(call.name)


@handles(operations.ListAliases)
def list_aliases(local: LocalEngine, _: operations.ListAliases) -> dict[str, str]:
    return local.engine.aliases()


@handles(operations.SetAlias)
def set_alias(local: LocalEngine, call: operations.SetAlias) -> results.AliasSet:
    name = local.engine.collection(call.collection).name
    return results.AliasSet(call.alias, name, local.engine.set_alias(call.alias, name))


@handles(operations.DropAlias)
def drop_alias(local: LocalEngine, call: operations.DropAlias) -> None:
    local.engine.drop_alias(call.alias)


# ---- documents


@handles(operations.Upsert)
def upsert(local: LocalEngine, call: operations.Upsert) -> results.WriteResult:
    """Store batch by batch; of each what can be stored."""
    opened, documents, embeddings = local.engine.collection(call.collection), call.documents, call.embeddings
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
        problems.sort(key=lambda problem: problem.line)
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


@handles(operations.GetDocument)
def get_document(local: LocalEngine, call: operations.GetDocument) -> Document:
    opened = local.engine.collection(call.collection)
    document = opened.store.get(call.id)
    if call.episode is not None:
        local.episodes.add_reading("", call.episode, opened.name, call.id)
    return document


def _document(source: Document | Mapping[str, Any], embedding: list[float] | None = None) -> Document:
    """A document as the engine takes it, with its embedding if it has one.

    Raises:
        InvalidDocument: a member twice, beside the metadata and in them.
    """
    if isinstance(source, Document):
        if embedding is None:
            return source
        return EmbeddedDocument(
            source.id, source.text, source.title, source.metadata, source.value, embedding=embedding
        )
    try:
        given = {name: value for name, value in document_members(source).items() if value is not None}
    except ValueError as error:
        raise InvalidDocument(str(error)) from None
    content = {"id": "", "text": "", **given}
    content["id"] = id_text(content["id"])
    if embedding is not None:
        content["embedding"] = embedding
    return EmbeddedDocument(**content) if "embedding" in content else Document(**content)


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


@handles(operations.Remember)
def remember(local: LocalEngine, call: operations.Remember) -> results.MemoryResult:
    from dsearch.training import remember

    opened = local.engine.collection(call.collection)
    return remember(opened, call.queries, call.judgements, accept=call.accept)


@handles(operations.ReadHead)
def read_head(local: LocalEngine, call: operations.ReadHead) -> dict[str, Any]:
    return _arrays_of(local.engine.collection(call.collection).head(call.version))


@handles(operations.AddDraft)
def draft_head(local: LocalEngine, call: operations.AddDraft) -> results.DraftAdded:
    opened = local.engine.collection(call.collection)
    return calls.add_draft(opened, head_file(call.tensors, None), call.parent)


@handles(operations.ReadDraft)
def read_draft(local: LocalEngine, call: operations.ReadDraft) -> dict[str, Any]:
    return _arrays_of(local.engine.collection(call.collection).drafts.get(call.draft, "").head)


@handles(operations.DropDraft)
def drop_draft(local: LocalEngine, call: operations.DropDraft) -> None:
    calls.drop_draft(local.engine.collection(call.collection), call.draft)


@handles(operations.AddModel)
def add_model(local: LocalEngine, call: operations.AddModel) -> results.ModelAdded:
    opened = local.engine.collection(call.collection)
    return calls.add_head(opened, head_file(call.tensors, call.record), call.parent)


def _arrays_of(head: Head) -> dict[str, Any]:
    from dsearch.engine import head_tensors

    return {name: tensor.numpy().copy() for name, tensor in head_tensors(head).items()}
