"""What clients get when they count values, delete by filter or change metadata."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class FacetValue(BaseModel):
    """A value of a field, and how many documents have it."""

    value: str | int | float | bool | None
    documents: int


class FacetsAnswer(BaseModel):
    """The values of each field."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "documents": 3,
                    "facets": {"year": [{"value": 2017, "documents": 2}, {"value": 2018, "documents": 1}]},
                }
            ]
        }
    )

    documents: int = Field(description="that meet the filter")
    facets: dict[str, list[FacetValue]] = Field(description="by field, the most frequent values first")


class ManyDeleted(BaseModel):
    """An acknowledged deletion."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sequence": 122, "deleted": 2, "missing": 1}]})

    sequence: int
    deleted: int
    missing: int = Field(description="ids that no document has")


class Patched(BaseModel):
    """An acknowledged change of metadata."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"sequence": 123, "id": "q-mc2", "metadata": {"year": 2018}}]}
    )

    sequence: int
    id: str
    metadata: dict[str, Any] = Field(description="as it is now")
