"""What collections, their models and the health of the process look like to clients."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from dsearch.service.answer_parts import KEYS, STAMP, Stamped, example

_COLLECTION = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    **STAMP,
    "encoder": {"name": "all-MiniLM-L6-v2", "dimension": 384},
    "language": "english",
    "passages": {"tokens": 256, "overlap": 32},
    "keys": KEYS,
}


class CollectionDescribed(Stamped):
    """What a collection is and holds."""

    model_config = example(_COLLECTION)

    name: str
    documents: int
    pending: int = Field(description="documents without an embedding yet: not searchable")
    encoder: dict[str, Any]
    language: str = Field(description="how its texts are cut into words")
    passages: dict[str, Any] | None = Field(
        description="most tokens of a passage of a long document, and how many of them it shares with the "
        "one before; null: documents are not cut"
    )
    keys: dict[str, Any] | None = Field(
        description="how the index keeps its keys, what was asked for, and recall, speed and size as "
        "measured when it was built; null for an index of an older release"
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
    """What an alias stands for now, and stood for before."""

    model_config = example({"alias": "papers", "collection": "papers-v2", "previous": "papers-v1"})

    alias: str
    collection: str
    previous: str | None


class ModelDescribed(BaseModel):
    """One version."""

    version: str
    parent: str | None = Field(description="the version that it was trained from")
    live: bool = Field(description="whether it answers when no version is asked for")
    record: dict[str, Any] = Field(description="scores on the gate, training data, seed")


class ModelList(BaseModel):
    """The versions of a collection; v0 is the untrained one."""

    model_config = example(
        {"live": "v1", "models": [{"version": "v0", "parent": None, "live": False, "record": {}}]}
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
    """Whether the process lives, or is ready."""

    model_config = example({"status": "ok"})

    status: Literal["ok", "ready"]
    damaged: int | None = Field(None, description="open collections whose index is damaged (GET /readyz)")
