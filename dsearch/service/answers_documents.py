"""What reading and writing documents answers, as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from dsearch.service.answer_parts import HIT, example


class DocumentStored(BaseModel):
    """A stored document."""

    model_config = example({**{k: HIT[k] for k in ("id", "title", "text", "metadata")}, "value": None})

    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    value: float | list[float] | None


class DocumentPage(BaseModel):
    """Documents by id, and where to go on."""

    model_config = example(
        {
            "documents": [{**{k: HIT[k] for k in ("id", "title", "text", "metadata")}, "value": None}],
            "next": "cS1tYzI",
        }
    )

    documents: list[DocumentStored]
    next: str | None = Field(description="the cursor of the next page; null: this was the last")


class LineProblem(BaseModel):
    """A line of a stream that was not stored."""

    line: int = Field(description="counted from 1")
    code: str
    detail: str


class Written(BaseModel):
    """An acknowledged write: it is durable, and found by every later search."""

    model_config = example(
        {"sequence": 121, "inserted": 2, "updated": 0, "unchanged": 1, "problems": [], "refused": 0}
    )

    sequence: int
    inserted: int
    updated: int
    unchanged: int
    refused: int = Field(description="lines of a stream that were not stored")
    problems: list[LineProblem] = Field(description="the first hundred of them")


class Deleted(BaseModel):
    """An acknowledged deletion."""

    model_config = example({"sequence": 122, "deleted": 1})

    sequence: int
    deleted: int
