"""Documents with their embeddings as one tensor: the body that writes many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load

from dsearch.errors import InvalidRequest, amount
from dsearch.service.wire.json import parse
from dsearch.types import Document, EmbeddedDocument

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
