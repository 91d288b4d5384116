"""`POST /v1/rerank` and `/v2/rerank`, as clients of Cohere's and Jina's APIs call them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from dsearch.declared import Values
from dsearch.engine.search.embed import RelevanceResult, rerank
from dsearch.errors import InvalidRequest
from dsearch.fields import QueryText
from dsearch.service.collections import Catalogue
from dsearch.service.compat.embeddings import QUESTIONS, ModelName, NamedModel
from dsearch.service.state import Service, TheService
from dsearch.service.wire.json import json_answer, new_id
from dsearch.service.wire.requests import RequestModel, StrictRoute

MAX_DOCUMENTS = 1000

router = APIRouter(tags=["compatible"], route_class=StrictRoute)


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


@router.post("/v1/rerank", response_model=RerankAnswer, responses=QUESTIONS)
async def rerank_v1(body: RerankRequest, service: TheService) -> Response:
    """Order texts by their similarity to a query (Cohere's API, version 1, and Jina's)."""
    return await _rerank(body, "1", service)


@router.post("/v2/rerank", response_model=RerankAnswer, responses=QUESTIONS)
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
