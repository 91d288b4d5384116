"""`POST /v1/embeddings` and `GET /v1/models`, as clients of OpenAI's API call them.

A model belongs to a collection, which compares such vectors. `papers@v3:query` embeds queries by what version
3 has learned, `papers@v3:document` embeds texts as documents.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from dsearch.declared import Values
from dsearch.encoder.text_encoder import Role
from dsearch.engine import calls
from dsearch.engine.search.embed import EmbedResult, embed, text_of_tokens
from dsearch.errors import (
    CollectionNotFound,
    DsearchError,
    EncoderMismatch,
    EncoderUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotFound,
)
from dsearch.results import Model
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.state import TheService
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute, repr_of

MAX_INPUTS = 2048

router = APIRouter(prefix="/v1", tags=["compatible"], route_class=StrictRoute)
QUESTIONS = documented(
    *(CollectionNotFound, ModelNotFound, EncoderMismatch, EncoderUnavailable, InvalidRequest, InvalidJson),
    *(BodyTooLarge, UnsupportedMediaType, Overloaded),
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


@router.post("/embeddings", response_model=EmbeddingsAnswer, responses=QUESTIONS)
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


@router.get("/models", response_model=ModelList, responses=documented(InvalidRequest))
async def list_model_names(service: TheService) -> Response:
    """List the models of all collections (OpenAI's API)."""
    return json_answer({"object": "list", "data": await service.read(partial(_models, service.catalogue))})


@router.get("/models/{id}", response_model=ModelObject, responses=documented(NotFound, InvalidRequest))
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
