"""Documents that are sent to be stored: as JSON, or as JSON beside their embeddings as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from safetensors import SafetensorError
from safetensors.numpy import load

from dsearch.declared import Values
from dsearch.errors import InvalidRequest, amount
from dsearch.fields import MAX_DIMENSION
from dsearch.service.wire.json import parse
from dsearch.service.wire.requests import BoundedErrors, RequestModel
from dsearch.types import Document, EmbeddedDocument, document_members, id_text

Number = Annotated[float, Field(allow_inf_nan=False)]


class DocumentGiven(RequestModel):
    """A document to store. Members of other names are metadata."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",  # none is left once they are metadata
    )

    id: Annotated[
        str,
        BeforeValidator(id_text),
        Field(min_length=1),
        Values("a string of 1 to 512 bytes, or an integer"),
    ]
    text: Annotated[str, Values("a string of at most 1 MiB")] = ""
    title: Annotated[str, Values("a string of at most 64 KiB")] = ""
    metadata: Annotated[dict[str, Any], Values("an object of JSON values")] = Field(
        {}, description="any JSON object"
    )
    value: Annotated[Number | list[Number] | None, Values("a finite number or a list of them")] = Field(
        None, description="what attention can pool"
    )
    embedding: Annotated[list[Number], Field(min_length=1, max_length=MAX_DIMENSION)] | None = Field(
        None,
        description="in a collection that was created with a dimension; scaled to length 1; without one the "
        "stored one stays with its text",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, content: Any) -> Any:  # in place of the one of `RequestModel`: it takes them
        if not isinstance(content, dict):
            return content
        return {name: value for name, value in document_members(content).items() if value is not None}

    def document(self) -> Document:
        """As the engine takes it."""
        if self.embedding is None:
            return Document(self.id, self.text, self.title, self.metadata, self.value)
        return EmbeddedDocument(
            self.id, self.text, self.title, self.metadata, self.value, embedding=self.embedding
        )


ARRAY = TypeAdapter(Annotated[list[DocumentGiven], BoundedErrors()])
_EXPECTED = "send a tensor `embeddings` [n, dimension], and a JSON array of the n documents as `documents`"


def documents_of_tensors(body: bytes) -> tuple[Any, Float[np.ndarray, "documents dimension"]]:
    """Read documents, as JSON, and their embeddings.

    Raises:
        InvalidRequest: not safetensors, other tensors, not one row a document.
        InvalidJson: the documents are no JSON.
    """
    try:
        tensors = load(body)
        size = int.from_bytes(body[:8], "little")
        described = parse(body[8 : 8 + size]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"not a safetensors file ({error}); {_EXPECTED}") from None
    embeddings, written = tensors.get("embeddings"), described.get("documents")
    if embeddings is None or len(tensors) != 1 or written is None:
        raise InvalidRequest(f"tensors {sorted(tensors)[:5]}, metadata {sorted(described)[:5]}; {_EXPECTED}")
    documents = parse(written.encode())
    if embeddings.ndim != 2 or embeddings.dtype.kind != "f" or not isinstance(documents, list):
        shape = list(embeddings.shape)
        raise InvalidRequest(f"embeddings of type {embeddings.dtype}, shape {shape}; {_EXPECTED}")
    if len(documents) != len(embeddings):
        raise InvalidRequest(
            f"{amount(len(documents), 'document')} and {amount(len(embeddings), 'embedding')}; {_EXPECTED}"
        )
    return documents, embeddings


def with_vectors(
    documents: Sequence[Document], embeddings: Float[np.ndarray, "documents dimension"]
) -> list[Document]:
    """Return the documents, each with its row.

    Raises:
        InvalidRequest: one has an embedding of its own beside it.
    """
    twice = next((document.id for document in documents if isinstance(document, EmbeddedDocument)), None)
    if twice is not None:
        raise InvalidRequest(f"document {twice[:80]!r} has an embedding beside its row; leave one out")
    return [
        EmbeddedDocument(bare.id, bare.text, bare.title, bare.metadata, bare.value, embedding=row)
        for bare, row in zip(documents, embeddings, strict=True)
    ]
