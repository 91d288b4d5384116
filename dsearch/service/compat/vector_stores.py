"""`/v1/vector_stores`, as clients of OpenAI's API call it: a vector store is a collection.

Its files are documents, written by the service's own API, or of uploaded files (store_files.py).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dsearch.engine import PassageOptions
from dsearch.errors import CollectionNotFound, Conflict, EncoderUnavailable, InvalidRequest, NotFound
from dsearch.results import CollectionInfo
from dsearch.search_options import SearchOptions
from dsearch.service.batching.search import Searches
from dsearch.service.compat.embeddings import QUESTIONS
from dsearch.service.compat.files import FileId
from dsearch.service.compat.store_parts import MAX_BATCH, Chunking, attach, described, file_of, name_of
from dsearch.service.errors import Overloaded
from dsearch.service.feedback import asker
from dsearch.service.schemas.search import QueryText
from dsearch.service.state import Service, TheService
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute, allowed, repr_of
from dsearch.store import parse_filter
from dsearch.types import Hit, Mode

MAX_RESULTS = 50
MAX_QUERIES = 16
_COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")
_FILTER = '{"type": "eq", "key": FIELD, "value": VALUE} or {"type": "and", "filters": [...]}'
_DEPTH = 16

router = APIRouter(prefix="/v1/vector_stores", tags=["compatible"], route_class=StrictRoute)


class HybridWeights(RequestModel):
    """Shares of meaning and words."""

    model_config = ConfigDict(strict=True)

    embedding_weight: Annotated[float, Field(ge=0, le=1e6), allowed("a number of at least 0")]
    text_weight: Annotated[float, Field(ge=0, le=1e6), allowed("a number of at least 0")]


class RankingOptions(RequestModel):
    """Order of results."""

    model_config = ConfigDict(strict=True)

    ranker: Annotated[str, Field(max_length=64), allowed("a string")] | None = Field(
        None, description="field of OpenAI's API; the collection's live model ranks"
    )
    score_threshold: Annotated[float, Field(ge=0, le=1), allowed("a number from 0 to 1")] | None = Field(
        None, description="leave out results of a lower score"
    )
    hybrid_search: HybridWeights | None = Field(
        None, description="a weight of 0 leaves one side out; otherwise the model's learned weights count"
    )


class VectorStoreSearch(RequestModel):
    """Queries to a vector store."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "query": "what is a key?",
                    "filters": {"type": "gte", "key": "year", "value": 2017},
                    "max_num_results": 5,
                }
            ]
        },
    )

    query: QueryText | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)] = Field(
        description="of several queries each document counts by its best score"
    )
    filters: Annotated[dict[str, Any], allowed(_FILTER)] | None = None
    max_num_results: Annotated[
        int, Field(ge=1, le=MAX_RESULTS), allowed(f"an integer from 1 to {MAX_RESULTS}")
    ] = 10
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = Field(None, description="field of OpenAI's API; not used")


class VectorStoreResult(BaseModel):
    """A document that was found."""

    file_id: str
    filename: str = Field(description="name of the uploaded file; else the title, or the id")
    score: float = Field(description="its share of the attention, 0 to 1")
    attributes: dict[str, Any] = Field(description="its metadata that are strings, numbers or booleans")
    content: list[dict[str, str]]


class VectorStoreResults(BaseModel):
    """The documents that fit best."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "vector_store.search_results.page",
                    "search_query": ["what is a key?"],
                    "data": [
                        {
                            "file_id": "d1",
                            "filename": "Keys",
                            "score": 0.4,
                            "attributes": {"year": 2017},
                            "content": [{"type": "text", "text": "Keys are compared with queries."}],
                        }
                    ],
                    "has_more": False,
                    "next_page": None,
                }
            ]
        }
    )

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[VectorStoreResult]
    has_more: bool
    next_page: str | None


class FileCounts(BaseModel):
    """Documents of a vector store."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


_STORE = {
    "id": "papers",
    "object": "vector_store",
    "name": "papers",
    "created_at": 0,
    "status": "completed",
    "usage_bytes": 0,
    "file_counts": {"in_progress": 0, "completed": 140, "failed": 0, "cancelled": 0, "total": 140},
    "metadata": {"model": "v3", "language": "english"},
}


class VectorStoreInfo(BaseModel):
    """A collection."""

    model_config = ConfigDict(json_schema_extra={"examples": [_STORE]})

    id: str
    object: Literal["vector_store"]
    name: str
    created_at: int = Field(description="not recorded: 0")
    status: Literal["completed", "in_progress"] = Field(description="in_progress: some cannot be found yet")
    usage_bytes: int = Field(description="not measured: 0")
    file_counts: FileCounts
    metadata: dict[str, str]


class VectorStoreList(BaseModel):
    """Every collection."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [_STORE],
                    "first_id": "papers",
                    "last_id": "papers",
                    "has_more": False,
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[VectorStoreInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.get("", response_model=VectorStoreList, responses=documented(InvalidRequest))
async def list_vector_stores(service: TheService) -> Response:
    """List the collections as vector stores (OpenAI's API)."""
    described = await service.read(service.catalogue.describe_all)
    data = [_store(info, service) for info in described if isinstance(info, CollectionInfo)]
    ids = [store["id"] for store in data]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return json_answer({"object": "list", "data": data, **ends, "has_more": False})


class VectorStoreCreate(RequestModel):
    """A vector store to make."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"name": "papers"}]})

    name: Annotated[str, Field(min_length=1, max_length=64), allowed("a name of 1 to 64 characters")] = Field(
        description="name of the collection, which is its id too"
    )
    file_ids: Annotated[list[FileId], Field(max_length=MAX_BATCH), allowed("ids of files")] | None = Field(
        None, description="uploaded files to store in it, in the background"
    )
    chunking_strategy: Chunking | None = Field(None, description="passages of its documents")


class VectorStoreDeleted(BaseModel):
    """A collection that was deleted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"id": "papers", "object": "vector_store.deleted", "deleted": True}]}
    )

    id: str
    object: Literal["vector_store.deleted"]
    deleted: bool = Field(description="always true")


@router.post(
    "",
    response_model=VectorStoreInfo,
    responses=QUESTIONS | documented(CollectionNotFound, NotFound, Conflict, EncoderUnavailable),
)
async def create_vector_store(body: VectorStoreCreate, service: TheService) -> Response:
    """Create a collection as a vector store (OpenAI's API); one that exists is unchanged."""
    cut = None if body.chunking_strategy is None else body.chunking_strategy.static
    passages = None if cut is None else PassageOptions(cut.max_chunk_size_tokens, cut.chunk_overlap_tokens)
    for id in body.file_ids or ():
        service.uploads.get(id)  # nothing is made for a file that is not there
    await service.writing.run(partial(service.catalogue.create, body.name, passages=passages))
    info = await described(service, body.name)
    if body.file_ids:
        await attach(service, info, [(id, {}) for id in body.file_ids], patience_s=0.0)
    return json_answer(_store(info, service))


@router.delete(
    "/{collection}",
    response_model=VectorStoreDeleted,
    responses=documented(CollectionNotFound, InvalidRequest, Conflict, Overloaded),
)
async def delete_vector_store(collection: str, service: TheService) -> Response:
    """Delete a collection with everything in it (OpenAI's API)."""
    info = await described(service, collection)
    await service.writing.run(partial(service.catalogue.drop, collection))
    service.attachments.forget(info.name)
    return json_answer({"id": collection, "object": "vector_store.deleted", "deleted": True})


@router.get("/{collection}", response_model=VectorStoreInfo, responses=QUESTIONS)
async def get_vector_store(collection: str, service: TheService) -> Response:
    """Describe a collection as a vector store (OpenAI's API)."""
    return json_answer(_store(await described(service, collection), service))


@router.post(
    "/{collection}/search",
    response_model=VectorStoreResults,
    responses=QUESTIONS | documented(Conflict),
)
async def search_vector_store(
    collection: str, body: VectorStoreSearch, request: Request, service: TheService
) -> Response:
    """Search a collection as a vector store (OpenAI's API)."""
    queries = [body.query] if isinstance(body.query, str) else body.query
    ranking = body.ranking_options or RankingOptions.model_validate({})
    options = SearchOptions(
        limit=body.max_num_results,
        filter=None if body.filters is None else parse_filter(_native(body.filters)),
        mode=_mode(ranking.hybrid_search),
        weight_threshold=ranking.score_threshold,
    )
    searches = Searches(service.catalogue, collection, options)
    results = await service.searching.run(partial(searches, queries), characters=sum(map(len, queries)))
    service.metrics.searched(collection, results)
    best: dict[str, Hit] = {}
    for result in results:
        page, _, _ = service.impressions.show(collection, result, key=asker(request), explore=0.0)
        for hit in page.hits:
            if hit.id not in best or hit.weight > best[hit.id].weight:
                best[hit.id] = hit
    hits = sorted(best.values(), key=lambda hit: -hit.weight)[: body.max_num_results]
    return json_answer(
        {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": [_result(hit) for hit in hits],
            "has_more": False,
            "next_page": None,
        }
    )


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "file_id": file_of(hit),
        "filename": name_of(hit),
        "score": hit.weight,
        "attributes": {
            name: value for name, value in hit.metadata.items() if isinstance(value, str | int | float)
        },
        "content": [{"type": "text", "text": hit.text}],
    }


def _mode(weights: HybridWeights | None) -> Mode:
    """The legs that have a weight.

    Raises:
        InvalidRequest: none has.
    """
    if weights is None or (weights.embedding_weight and weights.text_weight):
        return "hybrid"
    if not weights.embedding_weight and not weights.text_weight:
        raise InvalidRequest("ranking_options.hybrid_search: both weights are 0; leave one above 0")
    return "dense" if weights.embedding_weight else "keyword"


def _native(filter: Any, where: str = "filters", depth: int = 0) -> dict[str, Any]:
    """A filter of OpenAI's API as `parse_filter` takes it.

    Raises:
        InvalidRequest: not such a filter.
    """
    kind = filter.get("type") if isinstance(filter, dict) else None
    parts = filter.get("filters") if isinstance(filter, dict) else None
    if kind in ("and", "or") and isinstance(parts, list) and set(filter) == {"type", "filters"}:
        if depth >= _DEPTH:
            raise InvalidRequest(f"{where}: deeper than {_DEPTH}; use fewer levels")
        return {kind: [_native(part, f"{where}.{n}", depth + 1) for n, part in enumerate(parts)]}
    key = filter.get("key") if isinstance(filter, dict) else None
    if kind in _COMPARISONS and isinstance(key, str) and set(filter) == {"type", "key", "value"}:
        # A key is one name here: dots do not lead into objects, and "or" is a field like any other.
        name = key.replace("\\", "\\\\").replace(".", "\\.")
        name = f"\\{name}" if name in ("and", "or", "not") else name
        return {name: {kind: filter["value"]}}
    raise InvalidRequest(f"{where}={repr_of(filter)}; use {_FILTER}, with type {', '.join(_COMPARISONS)}")


def _store(info: CollectionInfo, service: Service) -> dict[str, Any]:
    states = [entry.status for entry in service.attachments.unfinished(info.name).values()]
    waiting = info.pending + states.count("in_progress")
    counts = {
        "in_progress": waiting,
        "completed": info.documents - info.pending,
        "failed": states.count("failed"),
        "cancelled": states.count("cancelled"),
        "total": info.documents + len(states),
    }
    return {
        "id": info.name,
        "object": "vector_store",
        "name": info.name,
        "created_at": 0,
        "status": "in_progress" if waiting else "completed",
        "usage_bytes": 0,
        "file_counts": counts,
        "metadata": {"model": info.model, "language": info.language},
    }
