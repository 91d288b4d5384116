"""Answers about collections, their models and statistics, and the health of the process."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsearch.service.schemas.common import KEYS, STAMP, Stamped, example

_COLLECTION = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    **STAMP,
    "model_problem": None,
    "encoder": {"name": "all-MiniLM-L6-v2", "dimension": 384},
    "language": "english",
    "passages": {"tokens": 256, "overlap": 32},
    "keys": KEYS,
}


class CollectionDescribed(Stamped):
    """Description of a collection."""

    model_config = example(_COLLECTION)

    name: str
    documents: int
    pending: int = Field(description="documents without an embedding yet: not searchable")
    model_problem: str | None = Field(
        description="why the version that was promoted does not answer, and which one does; or null"
    )
    encoder: dict[str, Any]
    language: str = Field(description="language of keyword search")
    passages: dict[str, Any] | None = Field(
        description="maximum tokens of a passage of a long document, and of its overlap with the previous "
        "one; null: documents are not cut"
    )
    keys: dict[str, Any] | None = Field(
        description="kind of the index, requested kind, and recall, speed and size as measured at its build; "
        "null for an index of an older release"
    )


class CollectionDamaged(BaseModel):
    """A collection that cannot be opened."""

    name: str
    problem: dict[str, str]


class CollectionList(BaseModel):
    """Every collection."""

    model_config = example({"collections": [_COLLECTION]})

    collections: list[CollectionDescribed | CollectionDamaged]


class AliasList(BaseModel):
    """Every alias with its collection."""

    model_config = example({"aliases": {"papers": "papers-v2"}})

    aliases: dict[str, str]


class AliasSet(BaseModel):
    """Target of an alias, and its previous one."""

    model_config = example({"alias": "papers", "collection": "papers-v2", "previous": "papers-v1"})

    alias: str
    collection: str
    previous: str | None


class ModelDescribed(BaseModel):
    """One version."""

    version: str
    parent: str | None = Field(description="version that training started from")
    live: bool = Field(description="whether it answers by default")
    problem: str | None = Field(
        description="part that this release no longer serves, which disables the version; or null"
    )
    record: dict[str, Any] = Field(description="scores on the gate, training data, seed")


class ModelList(BaseModel):
    """The versions of a collection; v0 is the untrained one."""

    model_config = example(
        {
            "live": "v1",
            "models": [{"version": "v0", "parent": None, "live": False, "problem": None, "record": {}}],
        }
    )

    live: str
    models: list[ModelDescribed]


class ModelAdded(BaseModel):
    """A version that was handed in; it is not live."""

    model_config = example({"model": "v3", "parent": "v2", "sequence": 131})

    model: str
    parent: str
    sequence: int


class Promoted(BaseModel):
    """The version that answers from now on, and the one that did."""

    model_config = example({"model": "v2", "previous": "v1", "sequence": 130})

    model: str
    previous: str
    sequence: int


class Health(BaseModel):
    """Liveness or readiness of the process."""

    model_config = example({"status": "ok"})

    status: Literal["ok", "ready"]
    damaged: int | None = Field(None, description="open collections whose index is damaged (GET /readyz)")


_STATISTICS = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    "deleted": 12,
    "sequence": 120,
    "model": "v1",
    "model_problem": None,
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
    """Documents written or deleted since the index was built."""

    documents: int
    share: float = Field(description="share of the documents of the last build")


class GenerationDescribed(BaseModel):
    """An edition of the index."""

    number: int
    live: bool
    documents: int
    sequence: int = Field(description="last operation that it contains")
    bytes: int


class StatisticsAnswer(BaseModel):
    """Statistics of a collection: contents and costs."""

    model_config = ConfigDict(json_schema_extra={"examples": [_STATISTICS]})

    name: str
    documents: int
    pending: int = Field(description="documents without an embedding yet: not searchable")
    deleted: int = Field(description="deleted documents whose bytes remain until a purge")
    sequence: int
    model: str
    model_problem: str | None = Field(
        description="why the version that was promoted does not answer, and which one does; or null"
    )
    models: int
    delta: Delta
    keys: dict[str, Any] | None = Field(
        description="kind of the live index, with measured recall, speed and size"
    )
    generations: list[GenerationDescribed]
    bytes: int = Field(description="size of all files")
    bytes_per_document: float | None
    rebuild: dict[str, Any] = Field(
        description="share that triggers a rebuild, whether a build runs, its progress, and why the last one "
        "failed"
    )
    verification: dict[str, Any] = Field(
        description="verification of the index: unopened, running, proven or damaged, with the problem"
    )
