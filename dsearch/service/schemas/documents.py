"""Requests and answers about documents, as the OpenAPI document shows them.

They cover writing and reading, search by example, counts of values, deletion by filter and changes of
metadata.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from dsearch.engine.search.similar import MAX_EXAMPLES
from dsearch.service.schemas.search import (
    DocumentId,
    FilteredRequest,
    KeyKind,
    QueryText,
    SearchFields,
    Vector,
)
from dsearch.service.wire.requests import RequestModel, allowed
from dsearch.store import Filter, parse_filter

MAX_DELETED_IDS = 10_000
MAX_PASSAGE_TOKENS = 100_000
MAX_FACET_FIELDS = 16
MAX_FACET_VALUES = 100
MAX_DIMENSION = 16_384

FieldPath = Annotated[
    str,
    Field(min_length=1, max_length=256),
    allowed("a dotted path of 1 to 256 characters, such as author.name"),
]
FacetValues = Annotated[
    int, Field(ge=1, le=MAX_FACET_VALUES), allowed(f"an integer from 1 to {MAX_FACET_VALUES}")
]


class SimilarRequest(SearchFields):
    """Documents that hits should be like, and unlike."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"like": ["q-mc2"], "limit": 5},
                {
                    "like": ["q-mc2", "a-17"],
                    "unlike": ["b-3"],
                    "query": "pooling",
                    "filter": {"year": {"gte": 2017}},
                },
            ]
        },
    )

    like: Annotated[list[DocumentId], Field(min_length=1, max_length=MAX_EXAMPLES)] = Field(
        description="ids of wanted examples; they are not among the hits"
    )
    unlike: Annotated[list[DocumentId], Field(max_length=MAX_EXAMPLES)] = Field(
        [], description="ids of unwanted examples; they are not among the hits"
    )
    query: QueryText | None = Field(None, description="query text to combine with the examples")
    vector: Vector | None = Field(
        None, description="combined with the examples in place of the text's embedding"
    )


class FacetsRequest(FilteredRequest):
    """Fields of the metadata whose values to count."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"fields": ["year", "author.name"], "filter": {"year": {"gte": 2017}}}]
        },
    )

    fields: Annotated[list[FieldPath], Field(min_length=1, max_length=MAX_FACET_FIELDS)] = Field(
        description="dotted paths; each element of a list counts"
    )
    limit: FacetValues = Field(10, description="values of each field, the most frequent first")


class DeleteRequest(FilteredRequest):
    """Documents to delete: those of these ids, or those that a filter finds."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"ids": ["q-mc2", "a-17"]}, {"filter": {"draft": {"eq": True}}}]},
    )

    ids: Annotated[list[DocumentId], Field(min_length=1, max_length=MAX_DELETED_IDS)] | None = Field(
        None, description="ids; give these or a filter"
    )

    def tree(self) -> Filter | None:
        """The filter, checked; it may name the folder that documents came from. Raises InvalidRequest."""
        return None if self.filter is None else parse_filter(self.filter, roots=True)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            selection = "neither ids nor filter" if self.ids is None else "ids and filter"
            raise ValueError(f"{selection}; give one of the two")
        return self


class CutRequest(RequestModel):
    """Passages of a new collection: splitting of documents that are longer than a passage."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"tokens": 128, "overlap": 16}]})

    tokens: Annotated[int, Field(ge=1, le=MAX_PASSAGE_TOKENS), allowed("a number of tokens")] | None = Field(
        None, description="maximum tokens of a passage; the encoder's window by default"
    )
    overlap: Annotated[int, Field(ge=0, le=MAX_PASSAGE_TOKENS), allowed("a number of tokens")] | None = Field(
        None, description="maximum tokens shared with the previous passage; an eighth of tokens by default"
    )
    none: Annotated[bool, allowed("true or false")] = Field(
        False, description="true to split no documents; text beyond the window is not encoded"
    )


class CreateRequest(RequestModel):
    """Options of a new collection."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"language": "german"},
                {"passages": {"tokens": 128, "overlap": 16}, "kind": "auto"},
                {"dimension": 512},
            ]
        },
    )

    passages: CutRequest | None = Field(None, description="how documents longer than a passage are cut")
    kind: KeyKind | None = Field(
        None, description="kind of the index; Flat, which compares every key, by default"
    )

    language: (
        Annotated[
            str, Field(min_length=1, max_length=32), allowed("a language such as english, german or none")
        ]
        | None
    ) = Field(
        None,
        description="language of keyword search; none keeps words as they are; english by default",
    )
    dimension: (
        Annotated[int, Field(ge=1, le=MAX_DIMENSION), allowed(f"an integer from 1 to {MAX_DIMENSION}")] | None
    ) = Field(
        None,
        description="length of embeddings of your own, which then come with the documents; the server's "
        "encoder makes them by default",
    )
    search_fields: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=16)] | None
    ) = Field(None, description="metadata fields whose strings keyword search has as words of a document")


class AliasRequest(RequestModel):
    """Target of an alias."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"collection": "papers-v2"}]})

    collection: Annotated[str, Field(min_length=1, max_length=64), allowed("the name of a collection")]


class PatchRequest(RequestModel):
    """Changes to a document's metadata."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"metadata": {"year": 2018, "draft": None}}]}
    )

    metadata: Annotated[dict[str, Any], allowed("an object of JSON values")] = Field(
        description="JSON Merge Patch (RFC 7396): objects are merged, null removes a key, others replace"
    )
