"""Routes in the shapes of other APIs, so that their clients can ask this service.

- `POST /v1/embeddings` and `GET /v1/models`, of OpenAI. A model belongs to a collection, which compares such
  vectors. `papers@v3:query` embeds queries by what version 3 has learned, `papers@v3:document` embeds texts
  as documents.
- `POST /v1/rerank` and `/v2/rerank`, of Cohere and Jina.
- `POST /retrieve`, of search agents in reinforcement learning (Search-R1, verl).

Requests are strict: a member that has no meaning here is accepted only if the API's clients send it, and says
so. Errors have the members that these clients parse (wire/problems.py).
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dsearch.declared import Values
from dsearch.encoder.text_encoder import Role
from dsearch.engine import calls
from dsearch.engine.search.embed import EmbedResult, RelevanceResult, embed, rerank, text_of_tokens
from dsearch.errors import (
    CollectionNotFound,
    DsearchError,
    EncoderMismatch,
    EncoderUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotFound,
)
from dsearch.fields import MAX_QUERIES, QueryText
from dsearch.results import Model
from dsearch.search_options import SearchOptions
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.searching import Searches
from dsearch.service.state import Service, TheService
from dsearch.service.wire.json import json_answer, new_id
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute, repr_of
from dsearch.types import Hit

MAX_INPUTS = 2048
MAX_DOCUMENTS = 1000
MAX_TOP = 100

router = APIRouter(tags=["compatible"], route_class=StrictRoute)
_BODIES = (InvalidJson, BodyTooLarge, UnsupportedMediaType, Overloaded)
_ENCODED = documented(
    *(CollectionNotFound, ModelNotFound, EncoderMismatch, EncoderUnavailable, InvalidRequest, *_BODIES)
)

Token = Annotated[int, Field(ge=0, le=1 << 31)]
Inputs = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_INPUTS)]
    | Annotated[list[Token], Field(min_length=1, max_length=MAX_INPUTS)]
    | Annotated[
        list[Annotated[list[Token], Field(min_length=1, max_length=MAX_INPUTS)]],
        Field(min_length=1, max_length=MAX_INPUTS),
    ]
)


class EmbeddingsRequest(RequestModel):
    """Texts to embed."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"model": "papers", "input": ["queries attend to keys"]}]},
    )

    model: ModelName = Field(description="as GET /v1/models lists them, or with a side: papers@v3:query")
    input: Annotated[Inputs, Values(f"a text, a list of 1 to {MAX_INPUTS} texts, or tokens")] = Field(
        description="texts, none of them empty; tokens only as the encoder's own tokenizer gives them"
    )
    encoding_format: Annotated[Literal["float", "base64"], Values("float or base64")] = Field(
        "float", description="numbers, or float32 in little-endian order as base64"
    )
    dimensions: Annotated[int, Field(ge=1, le=16_384), Values("a positive integer")] | None = Field(
        None, description="how many of the first numbers to keep, scaled to length 1 again"
    )
    input_type: Annotated[Literal["query", "document"], Values("query or document")] | None = Field(
        None, description="the side, where the model's name has none; document by default"
    )
    user: Annotated[str, Field(max_length=512), Values("a string")] | None = Field(
        None, description="field of OpenAI's API; not used"
    )


class EmbeddingObject(BaseModel):
    """One vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """Size of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """A vector of length 1 for each text, in their order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}],
                    "model": "papers@v3:document",
                    "usage": {"prompt_tokens": 4, "total_tokens": 4},
                }
            ]
        }
    )

    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str = Field(description="with the version and the side that answered")
    usage: EmbeddingsUsage


class ModelObject(BaseModel):
    """A model that embeddings and rerank take."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "papers@v3", "object": "model", "created": 1780000000, "owned_by": "dsearch"}]
        }
    )

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="seconds since 1970; 0: not recorded")
    owned_by: str


class ModelList(BaseModel):
    """Every collection, which stands for its live model, and every version."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [{"id": "papers", "object": "model", "created": 0, "owned_by": "dsearch"}],
                }
            ]
        }
    )

    object: Literal["list"] = "list"
    data: list[ModelObject]


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer, responses=_ENCODED)
async def create_embeddings(body: EmbeddingsRequest, service: TheService) -> Response:
    """Embed texts by the query or document side of a collection's model (OpenAI's API)."""
    model = NamedModel.of(body.model)
    if model.side and body.input_type not in (None, model.side):
        raise InvalidRequest(f"input_type={body.input_type!r} and model={repr_of(body.model)}; leave one out")
    side: Role = model.side or body.input_type or "document"
    given: Any = body.input  # one or many, texts or tokens
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
    characters = sum(len(item) for item in inputs)
    work = partial(_embed, service.catalogue, model, inputs, side, body.dimensions)
    embedded = await service.encoding.run(work, characters=characters)
    usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
    data = [
        {"object": "embedding", "index": number, "embedding": _written(vector, body.encoding_format)}
        for number, vector in enumerate(embedded.vectors)
    ]
    answered_by = str(NamedModel(model.collection, embedded.model, side))
    return json_answer({"object": "list", "data": data, "model": answered_by, "usage": usage})


def _embed(
    catalogue: Catalogue,
    model: NamedModel,
    inputs: list[str | list[int]],
    side: Role,
    dimensions: int | None,
) -> EmbedResult:
    with catalogue.whole(model.collection, encoder=True) as collection:
        texts = [
            item if isinstance(item, str) else text_of_tokens(collection.encoder, item) for item in inputs
        ]
        blank = next((number for number, text in enumerate(texts) if not text.strip()), None)
        if blank is not None:
            raise InvalidRequest(f"input.{blank} is empty; give at least one word")
        return embed(collection, texts, side, model=model.version, dimensions=dimensions)


def _written(vector: np.ndarray, encoding_format: str) -> Any:
    return vector if encoding_format == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode()


@router.get("/v1/models", response_model=ModelList, responses=documented(InvalidRequest))
async def list_model_names(service: TheService) -> Response:
    """List the models of all collections (OpenAI's API)."""
    return json_answer({"object": "list", "data": await service.read(partial(_models, service.catalogue))})


@router.get("/v1/models/{id}", response_model=ModelObject, responses=documented(NotFound, InvalidRequest))
async def get_model_name(id: str, service: TheService) -> Response:
    """Return one model (OpenAI's API)."""
    model = NamedModel.of(id)
    aliases = await service.read(service.catalogue.engine.aliases)
    plain = str(NamedModel(aliases.get(model.collection, model.collection), model.version))
    for item in await service.read(partial(_models, service.catalogue)):
        if item["id"] == plain:
            return json_answer({**item, "id": id})
    raise ModelNotFound(f"no model {repr_of(id)}; GET /v1/models lists those that there are")


def _models(catalogue: Catalogue) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for name in catalogue.engine.names():
        try:
            with catalogue.using(name) as collection:
                models = calls.list_models(collection)
        except DsearchError:
            continue  # deleted since, or damaged, which its use reports
        live = [item for item in models.models if item.version == models.live]
        results += [
            _model(name, live[0]),
            *(_model(f"{name}@{item.version}", item) for item in models.models),
        ]
    return results


def _model(id: str, model: Model) -> dict[str, Any]:
    created = model.record.get("created")
    try:
        seconds = int(datetime.fromisoformat(created).timestamp()) if isinstance(created, str) else 0
    except ValueError:
        seconds = 0
    return {"id": id, "object": "model", "created": seconds, "owned_by": "dsearch"}


_NAMED = re.compile(r"([^@:\s]+)(?:@(v[0-9]{1,9}))?(?::(query|document))?")
_USE = "use COLLECTION, COLLECTION@VERSION or COLLECTION@VERSION:query, such as papers@v3 (GET /v1/models)"

ModelName = Annotated[str, Field(min_length=1, max_length=128), Values("a string; see GET /v1/models")]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model by its name.

    Attributes:
        collection: name or alias of a collection.
        version: version of its model; None: the live one.
        side: side of the model; None: the name does not say.
    """

    collection: str
    version: str | None = None
    side: Role | None = None

    @classmethod
    def of(cls, name: str) -> NamedModel:
        """Parse a name.

        Raises:
            InvalidRequest: not the name of a model.
        """
        matched = _NAMED.fullmatch(name)
        if matched is None:
            raise InvalidRequest(f"model={repr_of(name)}; {_USE}")
        side: Role | None = "query" if matched[3] == "query" else "document" if matched[3] else None
        return cls(matched[1], matched[2], side)

    def __str__(self) -> str:
        version = f"@{self.version}" if self.version else ""
        return f"{self.collection}{version}" + (f":{self.side}" if self.side else "")


class RerankRequest(RequestModel):
    """A query, and texts to order by it."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "model": "papers",
                    "query": "what is a key?",
                    "documents": ["Keys are compared with queries.", "Rivers flow."],
                    "top_n": 1,
                }
            ]
        },
    )

    model: ModelName = Field(description="as GET /v1/models lists them")
    query: QueryText
    documents: Annotated[list[str | dict[str, Any]], Field(min_length=1, max_length=MAX_DOCUMENTS)] = Field(
        description='texts, or objects with a member "text"'
    )
    top_n: Annotated[int, Field(ge=1), Values("a positive integer")] | None = Field(
        None, description="number of results; all by default"
    )
    return_documents: Annotated[bool, Values("true or false")] = Field(
        False, description="whether results hold the documents"
    )
    rank_fields: list[str] | None = Field(
        None, description="members of the objects that are read, in this order; text by default"
    )
    max_chunks_per_doc: int | None = Field(None, description="field of Cohere's API; not used")
    max_tokens_per_doc: int | None = Field(None, description="field of Cohere's API; not used")
    priority: int | None = Field(None, description="field of Cohere's API; not used")


class RerankResult(BaseModel):
    """One of the document documents."""

    index: int = Field(description="number in the request, from 0")
    relevance_score: float = Field(description="(1 + cosine) / 2 by the model, 0 to 1")
    document: dict[str, Any] | None = None


class RerankUsage(BaseModel):
    """Size of a request."""

    total_tokens: int


class RerankAnswer(BaseModel):
    """The documents that fit the query best."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
                    "model": "papers@v3",
                    "results": [{"index": 0, "relevance_score": 0.81}],
                    "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
                    "usage": {"total_tokens": 12},
                }
            ]
        }
    )

    id: str
    model: str = Field(description="with the version that answered")
    results: list[RerankResult] = Field(description="best first")
    meta: dict[str, Any]
    usage: RerankUsage


@router.post("/v1/rerank", response_model=RerankAnswer, responses=_ENCODED)
async def rerank_v1(body: RerankRequest, service: TheService) -> Response:
    """Order texts by their similarity to a query (Cohere's API, version 1, and Jina's)."""
    return await _rerank(body, "1", service)


@router.post("/v2/rerank", response_model=RerankAnswer, responses=_ENCODED)
async def rerank_v2(body: RerankRequest, service: TheService) -> Response:
    """Order texts by their similarity to a query (Cohere's API, version 2)."""
    return await _rerank(body, "2", service)


async def _rerank(body: RerankRequest, version: Literal["1", "2"], service: Service) -> Response:
    model = NamedModel.of(body.model)
    texts = [_text(number, item, body.rank_fields) for number, item in enumerate(body.documents)]
    characters = len(body.query) + sum(map(len, texts))
    work = partial(_compare, service.catalogue, model, body.query, texts)
    reranked = await service.encoding.run(work, characters=characters)
    order = np.argsort(-reranked.scores, kind="stable")[: body.top_n].tolist()
    results: list[dict[str, Any]] = []
    for number in order:
        result: dict[str, Any] = {"index": number, "relevance_score": float(reranked.scores[number])}
        if body.return_documents:
            document = body.documents[number]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    return json_answer(
        {
            "id": new_id(),
            "model": str(NamedModel(model.collection, reranked.model)),
            "results": results,
            "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 1}},
            "usage": {"total_tokens": reranked.tokens},
        }
    )


def _text(number: int, document: str | dict[str, Any], fields: list[str] | None) -> str:
    if isinstance(document, dict):
        parts = [document.get(field) for field in fields or ["text"]]
        text = " ".join(part for part in parts if isinstance(part, str))
    else:
        text = document
    if not text.strip():
        wanted = f"a text in {' or '.join(fields or ['text'])}" if isinstance(document, dict) else "a text"
        raise InvalidRequest(f"documents.{number} is empty; give {wanted}")
    return text


def _compare(catalogue: Catalogue, model: NamedModel, query: str, texts: list[str]) -> RelevanceResult:
    with catalogue.whole(model.collection, encoder=True) as collection:
        return rerank(collection, query, texts, model=model.version)


CollectionParameter = Annotated[
    str | None,
    Query(
        max_length=64, description="where to search; may be left out where there is one", examples=["papers"]
    ),
]


class RetrieveRequest(RequestModel):
    """Queries of an agent."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?"], "topk": 3, "return_scores": True}]},
    )

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]
    topk: Annotated[int, Field(ge=1, le=MAX_TOP), Values(f"an integer from 1 to {MAX_TOP}")] | None = Field(
        3, description="number of documents for each query"
    )
    return_scores: Annotated[bool, Values("true or false")] = Field(
        False, description="whether each document stands beside its score"
    )


class RetrieveAnswer(BaseModel):
    """Documents of each query, best first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "result": [[{"document": {"id": "d1", "contents": '"Keys"\nKeys are …'}, "score": 0.7}]],
                    "query_ids": ["0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de"],
                }
            ]
        }
    )

    result: list[list[dict[str, Any]]] = Field(
        description="documents with id and contents: the title in quotes, then the text on the next line; "
        "with return_scores objects of document and score"
    )
    query_ids: list[str] = Field(description="one for each query, for feedback and outcomes")


@router.post(
    "/retrieve",
    response_model=RetrieveAnswer,
    responses=documented(CollectionNotFound, InvalidRequest, *_BODIES, EncoderUnavailable),
)
async def retrieve(
    body: RetrieveRequest, request: Request, service: TheService, collection: CollectionParameter = None
) -> Response:
    """Search with many queries, in the shape of Search-R1 and verl."""
    name = await _only(collection, service)
    searches = Searches(service.catalogue, name, SearchOptions(limit=body.topk or 3))
    results = await service.searching.run(
        partial(searches, body.queries), characters=sum(map(len, body.queries))
    )
    service.metrics.searched(name, results)
    rows: list[list[dict[str, Any]]] = []
    query_ids: list[str] = []
    for result in results:
        page, query_id, _ = service.impressions.show(name, result, key=asker(request))
        query_ids.append(query_id)
        rows.append([_row(hit, body.return_scores) for hit in page.hits])
    return json_answer({"result": rows, "query_ids": query_ids})


def _row(hit: Hit, scored: bool) -> dict[str, Any]:
    document = {"id": hit.id, "contents": f'"{hit.title}"\n{hit.text}'}
    return {"document": document, "score": hit.score} if scored else document


async def _only(collection: str | None, service: Service) -> str:
    """The collection that a request means.

    Raises:
        InvalidRequest: none was named, and there is none or more than one.
    """
    if collection is not None:
        return collection
    names = await service.read(service.catalogue.engine.names)
    if len(names) != 1:
        choices = ", ".join(names[:20]) or "none"
        raise InvalidRequest(f"collection is missing; name one: ?collection=NAME; there are: {choices}")
    return names[0]
