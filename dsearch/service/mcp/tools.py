"""`TOOLS`: what an agent can do with the collections. The Model Context Protocol is in protocol.py.

`search` and `fetch` have the shapes that agents expect of a source of knowledge: ids, titles and addresses
first, then the text of what looks useful. An id names the collection as well: "papers/d17".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from dsearch.declared import Values
from dsearch.engine.feedback import TaskOutcome
from dsearch.errors import DsearchError, InvalidRequest
from dsearch.fields import QueryText
from dsearch.operations import Call, GetDocument, ListCollections, ReportOutcome, Search, Upsert
from dsearch.results import CollectionInfo
from dsearch.search_options import SearchOptions
from dsearch.service.collections import Catalogue
from dsearch.service.feedback import record_outcome
from dsearch.service.keys import SCOPES, Scope
from dsearch.service.schemas.answers import public_metadata
from dsearch.service.schemas.declared import arguments_of, described
from dsearch.service.schemas.documents import DocumentGiven
from dsearch.service.searching import Searches
from dsearch.service.state import Service
from dsearch.service.wire.requests import RequestModel, repr_of
from dsearch.types import Document, Hit

MAX_FOUND = 50
MAX_ADDED = 100
_TITLE_CHARACTERS = 80
_PLACE = "dsearch://"

CollectionGiven = Annotated[
    str, Values("the name of a collection, as list_collections gives it", shortest=1, longest=64)
]
ResultId = Annotated[str, Values("the id of a result of search", shortest=3, longest=1024)]


class FoundDocument(BaseModel):
    """One result of the tool `search`."""

    id: str = Field(description="for the tool fetch")
    title: str
    url: str


class FoundDocuments(BaseModel):
    """Answer of the tool `search`."""

    results: list[FoundDocument] = Field(description="best first")


class FetchedDocument(BaseModel):
    """Answer of the tool `fetch`."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, Any]


class CollectionListed(BaseModel):
    """One collection in the answer of the tool `list_collections`."""

    name: str
    documents: int
    model: str = Field(description="version of the ranking that answers")
    language: str


class CollectionsListed(BaseModel):
    """Answer of the tool `list_collections`."""

    collections: list[CollectionListed]


class DocumentsAdded(BaseModel):
    """Answer of the tool `add_documents`."""

    inserted: int
    updated: int
    unchanged: int


class OutcomeRecorded(BaseModel):
    """Answer of the tool `report_outcome`."""

    recorded: int = Field(description="number of judgements that are new")


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """Caller of a tool.

    Attributes:
        scope: scope of the key; "admin" where no key is needed.
        key: id of the key; "" where none is needed.
        address: where the service is reached, such as "http://127.0.0.1:8080"; "" where it is not over HTTP.
        is_owner: whether it runs as the owner of the home: its outcomes need no writing key.
    """

    scope: Scope
    key: str = ""
    address: str = ""
    is_owner: bool = False

    def may(self, tool: AgentTool) -> bool:
        """Return True if the caller may use a tool."""
        return SCOPES.index(self.scope) >= SCOPES.index(tool.scope) or (self.is_owner and not tool.replaces)


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool: the call that it makes, and the function that does it.

    Attributes:
        call: declares what it does, and the scope of a key that may call it.
        use: what an agent makes of its answer.
        replaces: whether what it stores can replace documents. None of the tools deletes any.
    """

    name: str
    title: str
    call: type[Call[Any]]
    use: str
    arguments: type[RequestModel]
    answer: type[BaseModel]
    run: Callable[[Service, Any, ToolCaller], Awaitable[BaseModel]]
    replaces: bool = False

    @property
    def description(self) -> str:
        """What it does, as its call says, and what that is good for."""
        return f"{described(self.call)[0].partition(chr(10) * 2)[0]} {self.use}".strip()

    @property
    def scope(self) -> Scope:
        """Scope of a key that may call it."""
        return self.call.place.scope


async def _search(service: Service, call: Any, caller: ToolCaller) -> FoundDocuments:
    names = (
        await service.read(service.catalogue.engine.names)
        if call.collection is None
        else [await service.read(partial(service.catalogue.own_name, call.collection))]
    )
    if not names:
        raise InvalidRequest("there is no collection yet; make one with: dsearch index FILES")
    pages: list[list[FoundDocument]] = []
    error: DsearchError | None = None
    for name in names:
        searches = Searches(service.catalogue, name, SearchOptions(limit=call.limit))
        try:
            result = await service.searching.submit(searches, call.query, characters=len(call.query))
        except DsearchError as raised:  # a damaged collection does not keep the others from answering
            error = raised
            continue
        service.metrics.searched(name, [result])
        page, query_id, _ = service.impressions.show(name, result, key=caller.key)
        seen = service.impressions.find(name, query_id)
        if call.episode is not None and seen is not None:
            service.episodes.add_page(caller.key, call.episode, name, seen)
        pages.append(
            [
                FoundDocument(id=f"{name}/{hit.id}", title=_title(hit), url=_url(name, hit, caller))
                for hit in page.hits
            ]
        )
    if error is not None and not pages:
        raise error
    in_turn = chain.from_iterable(zip_longest(*pages))
    return FoundDocuments(results=[item for item in in_turn if item is not None][: call.limit])


async def _fetch(service: Service, call: Any, caller: ToolCaller) -> FetchedDocument:
    name, _, id = call.id.partition("/")
    if not id:
        raise InvalidRequest(f"id={repr_of(call.id)}; use the id of a result of search, such as papers/d17")
    name, document = await service.read(partial(_stored, service.catalogue, name, id))
    if call.episode is not None:
        service.episodes.add_reading(caller.key, call.episode, name, id)
    return FetchedDocument(
        id=call.id,
        title=_title(document),
        text=document.text,
        url=_url(name, document, caller),
        metadata=public_metadata(document.metadata),
    )


async def _report_outcome(service: Service, call: Any, caller: ToolCaller) -> OutcomeRecorded:
    useful: dict[str, list[str]] = {}
    for each in call.useful_ids:
        prefix, _, id = each.partition("/")
        name = await service.read(partial(service.catalogue.own_name, prefix))
        useful.setdefault(name, []).append(id)
    searched = service.episodes.collections(caller.key, call.episode)
    if strange := next((name for name in useful if name not in searched), None):
        raise InvalidRequest(
            f"useful_ids has {repr_of(f'{strange}/{useful[strange][0]}')}, which no search of this episode "
            "showed; give ids of its results"
        )
    outcomes = {name: TaskOutcome(useful.get(name, ()), call.success) for name in searched}
    for name, outcome in outcomes.items():  # nothing is stored of a report that is wrong somewhere
        service.episodes.feedback(caller.key, call.episode, name, outcome, now_s=0.0)
    recorded = 0
    for name, outcome in outcomes.items():
        work = partial(
            record_outcome, service.catalogue, service.episodes, name, caller.key, call.episode, outcome
        )
        recorded += (await service.feedback.run(work)).events
    return OutcomeRecorded(recorded=recorded)


def _stored(catalogue: Catalogue, name: str, id: str) -> tuple[str, Document]:
    """A document, and the collection's own name."""
    with catalogue.using(name) as collection:
        return collection.name, collection.store.get(id)


async def _list_collections(service: Service, _: Any, caller: ToolCaller) -> CollectionsListed:
    described = await service.read(service.catalogue.describe_all)
    listed = [
        CollectionListed(name=item.name, documents=item.documents, model=item.model, language=item.language)
        for item in described
        if isinstance(item, CollectionInfo)  # a damaged one answers nothing
    ]
    return CollectionsListed(collections=listed)


async def _add_documents(service: Service, call: Any, caller: ToolCaller) -> DocumentsAdded:
    documents = [item.document() for item in call.documents]
    characters = sum(len(item.text) + len(item.title) for item in documents)
    store = partial(_store, service.catalogue, call.collection, documents)
    return await service.writing.run(store, characters=characters)


def _store(catalogue: Catalogue, name: str, documents: list[Document]) -> DocumentsAdded:
    with catalogue.writing(name, encoder=True) as collection:
        receipt = collection.upsert(documents)
    return DocumentsAdded(inserted=receipt.inserted, updated=receipt.updated, unchanged=receipt.unchanged)


def _title(document: Document | Hit) -> str:
    """The title; of a document without one the beginning of its text, or its id."""
    if document.title.strip():
        return document.title
    line = next(filter(None, map(str.strip, document.text.splitlines())), document.id)
    return line if len(line) <= _TITLE_CHARACTERS else line[: _TITLE_CHARACTERS - 1] + "…"


def _url(collection: str, document: Document | Hit, caller: ToolCaller) -> str:
    """The address that the document's metadata give, or where the service has it."""
    address = document.metadata.get("url")
    if isinstance(address, str) and address:
        return address
    id = quote(document.id, safe="")
    if not caller.address:
        return f"{_PLACE}{collection}/{id}"
    return f"{caller.address}/v1/collections/{collection}/documents/{id}"


TOOLS = {
    tool.name: tool
    for tool in (
        AgentTool(
            "search",
            "Search",
            Search,
            "Gives ids, titles and addresses, best first; read a document with fetch.",
            arguments_of(
                Search,
                "episode",
                query=(
                    QueryText,
                    Field(description='words or a question; "phrases" must occur, -terms must not'),
                ),
                collection=(
                    CollectionGiven | None,
                    Field(None, description="where; without it everywhere, the best of each in turn"),
                ),
                limit=(
                    Annotated[int, Values(f"an integer from 1 to {MAX_FOUND}", low=1, high=MAX_FOUND)],
                    Field(10, description="number of results"),
                ),
            ),
            FoundDocuments,
            _search,
        ),
        AgentTool(
            "fetch",
            "Read a document",
            GetDocument,
            "Gives the whole text and the metadata of one that search found.",
            arguments_of(
                GetDocument, "episode", id=(ResultId, Field(description="id of a result of search"))
            ),
            FetchedDocument,
            _fetch,
        ),
        AgentTool(
            "list_collections",
            "List collections",
            ListCollections,
            "With their sizes; search takes the names.",
            arguments_of(ListCollections),
            CollectionsListed,
            _list_collections,
        ),
        AgentTool(
            "add_documents",
            "Add documents",
            Upsert,
            "They can be found at once.",
            arguments_of(
                Upsert,
                collection=(
                    CollectionGiven,
                    Field(description="where to store them; it must be there"),
                ),
                documents=(
                    Annotated[list[DocumentGiven], Field(min_length=1, max_length=MAX_ADDED)],
                    Field(description="a document of the same id is replaced"),
                ),
            ),
            DocumentsAdded,
            _add_documents,
            replaces=True,
        ),
        AgentTool(
            "report_outcome",
            "Report how a task ended",
            ReportOutcome,
            "Say which documents helped and whether it succeeded: later searches learn from it.",
            arguments_of(
                ReportOutcome,
                *("episode", "success"),
                useful_ids=(
                    Annotated[list[ResultId], Field(max_length=100)],
                    Field(description="ids of results that helped; an empty list if none did"),
                ),
            ),
            OutcomeRecorded,
            _report_outcome,
        ),
    )
}
"""Every tool by its name."""
