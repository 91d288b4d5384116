"""What the statistics of a collection look like to clients."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dsearch.service.answer_parts import KEYS

_STATISTICS = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    "deleted": 12,
    "sequence": 120,
    "model": "v1",
    "models": 2,
    "delta": {"documents": 31, "share": 0.006},
    "keys": KEYS,
    "generations": [{"number": 3, "live": True, "documents": 5164, "sequence": 96, "bytes": 21000000}],
    "bytes": 42000000,
    "bytes_per_document": 8103.4,
    "rebuild": {"share": 0.05, "running": False, "progress": None, "problem": None},
    "verification": {"state": "proven", "problem": None},
}


class Delta(BaseModel):
    """What was written or deleted since the index was built."""

    documents: int
    share: float = Field(description="of the documents that the index was built of")


class GenerationDescribed(BaseModel):
    """An edition of the index."""

    number: int
    live: bool
    documents: int
    sequence: int = Field(description="the last operation that it knows of")
    bytes: int


class StatisticsAnswer(BaseModel):
    """What a collection holds and costs."""

    model_config = ConfigDict(json_schema_extra={"examples": [_STATISTICS]})

    name: str
    documents: int
    pending: int = Field(description="documents without an embedding yet: not searchable")
    deleted: int = Field(
        description="documents that are gone but whose bytes are not; purging takes them away"
    )
    sequence: int
    model: str
    models: int
    delta: Delta
    keys: dict[str, Any] | None = Field(
        description="how the live generation keeps its keys, and recall, speed and size as measured"
    )
    generations: list[GenerationDescribed]
    bytes: int = Field(description="of all files")
    bytes_per_document: float | None
    rebuild: dict[str, Any] = Field(
        description="the share from which on it is rebuilt by itself, whether a build runs, how far it is, "
        "and why the last one failed"
    )
    verification: dict[str, Any] = Field(
        description="whether the index is what was written: unopened, running, proven or damaged; and why not"
    )
