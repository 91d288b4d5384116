"""Parts that vector stores and their files share: passages, ids of files, attaching."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from dsearch.errors import InvalidRequest
from dsearch.results import CollectionInfo
from dsearch.service.middleware import deadline
from dsearch.service.schemas.documents import MAX_PASSAGE_TOKENS
from dsearch.service.state import Service
from dsearch.service.uploads.attaching import AttachedBatch
from dsearch.service.uploads.reading import FIELD
from dsearch.service.wire.requests import RequestModel, allowed
from dsearch.types import Document, Hit

MAX_BATCH = 500  # files
PATIENCE_S = 20.0  # of an answer: files that take longer are in progress
_MARGIN_S = 1.0  # before the request's deadline


class StaticChunks(RequestModel):
    """Passages of a new vector store."""

    model_config = ConfigDict(strict=True)

    max_chunk_size_tokens: Annotated[
        int, Field(ge=1, le=MAX_PASSAGE_TOKENS), allowed("a number of tokens")
    ] = Field(description="maximum tokens of a passage, at most the encoder's window", examples=[256])
    chunk_overlap_tokens: Annotated[
        int, Field(ge=0, le=MAX_PASSAGE_TOKENS), allowed("a number of tokens")
    ] = Field(description="maximum tokens shared with the previous passage", examples=[32])


class Chunking(RequestModel):
    """Passages: lengths of the parts of documents that are embedded."""

    model_config = ConfigDict(strict=True)

    type: Annotated[Literal["auto", "static"], allowed("auto or static")] = Field(
        description="auto: by the encoder's window; static: as `static` says"
    )
    static: StaticChunks | None = Field(None, description="of type static")

    @model_validator(mode="after")
    def _with_numbers(self) -> Self:
        if (self.type == "static") != (self.static is not None):
            raise ValueError(f"chunking_strategy of type {self.type}; give `static` with type static alone")
        return self


def file_of(document: Document | Hit) -> str:
    """Id of the file that a document is, or that it was read from."""
    own = document.metadata.get(FIELD)
    file = own.get("file") if isinstance(own, dict) else None
    return file if isinstance(file, str) else document.id


def name_of(hit: Hit) -> str:
    """Name of an uploaded file; of other documents the title, or the id."""
    name = hit.metadata.get("name") if file_of(hit) != hit.id or FIELD in hit.metadata else None
    return name if isinstance(name, str) else hit.title or hit.id


def chunks_of(info: CollectionInfo) -> dict[str, Any]:
    """Passages of a collection, in OpenAI's shape."""
    if not info.passages:
        return {"type": "other"}
    tokens, overlap = info.passages["tokens"], info.passages["overlap"]
    return {"type": "static", "static": {"max_chunk_size_tokens": tokens, "chunk_overlap_tokens": overlap}}


async def described(service: Service, collection: str) -> CollectionInfo:
    """The collection of this name or alias."""
    return await service.read(partial(service.catalogue.describe, collection))


async def attach(
    service: Service,
    info: CollectionInfo,
    files: Sequence[tuple[str, Mapping[str, Any]]],
    patience_s: float = PATIENCE_S,
) -> AttachedBatch:
    """Begin to store uploaded files, and wait for so long.

    Raises:
        NotFound: one of them was not uploaded.
        InvalidRequest: an attribute of a name that is not free.
    """
    for _, attributes in files:
        require_names(attributes)
    await service.read(lambda: [service.uploads.get(file) for file, _ in files])
    batch = service.attachments.start(info.name, files, f"vsfb_{secrets.token_hex(12)}")
    ends = deadline.present()
    left_s = patience_s if ends is None else ends - asyncio.get_running_loop().time() - _MARGIN_S
    await service.attachments.settle(batch, max(0.0, min(patience_s, left_s)))
    return batch


def require_names(attributes: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for attributes of a name that is the service's own."""
    if FIELD in attributes:
        raise InvalidRequest(f"attributes.{FIELD}: the service's own name; use another one")


def require_chunks(chunking: Chunking | None, info: CollectionInfo) -> None:
    """Raise InvalidRequest for passages that are not the collection's."""
    wanted = None if chunking is None else chunking.static
    if wanted is None:
        return
    own = info.passages or {}
    if (wanted.max_chunk_size_tokens, wanted.chunk_overlap_tokens) != (own.get("tokens"), own.get("overlap")):
        cut = f"tokens={own['tokens']}, overlap={own['overlap']}" if own else "not cut"
        raise InvalidRequest(
            f"chunking_strategy: passages of collection {info.name!r} are {cut}; leave it out, or create a "
            "vector store with this one"
        )
