"""Parts of every answer: its stamp, and the example that the OpenAPI document shows.

Answers are written from plain objects, which is faster; tests compare every answer with its model.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dsearch.index import AUTO, DENSE_KINDS
from dsearch.service.wire.fields import allowed, listed

STAMP = {"generation": 3, "model": "v1", "sequence": 120}
HIT = {
    "rank": 1,
    "id": "q-mc2",
    "weight": 0.61,
    "score": 0.87,
    "title": "Queries, keys, values",
    "text": "Attention pools values by how well their keys agree with a query.",
    "metadata": {"year": 2017},
}

KEYS = {
    "kind": "IVFPQ",
    "asked": "auto",
    "recall_target": 0.99,
    "memory_bytes": None,
    "parameters": {"nprobe": 24, "k_factor": 4},
    "recall_at_10": 0.991,
    "queries_per_s": 1450.0,
    "bytes_per_document": 496.2,
}


KeyKind = Annotated[
    str, Field(min_length=1, max_length=32), allowed(listed([AUTO, *DENSE_KINDS]))
]  # the engine checks the name, and lists the kinds that are installed


def example(example: Any, *others: Any) -> ConfigDict:
    """Show these objects as examples of a model."""
    return ConfigDict(json_schema_extra={"examples": [example, *others]})


class Stamped(BaseModel):
    """State from which an answer was computed; equal stamps give equal answers."""

    generation: int
    model: str
    sequence: int
