"""Requests of searches, as the OpenAPI document shows them.

Requests are checked field by field, and errors say what is allowed; unknown names are rejected.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Self

from fastapi import Query
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dsearch.attention_options import AttentionOptions
from dsearch.declared import options_of
from dsearch.engine.feedback import MAX_EXPLORE
from dsearch.errors import amount
from dsearch.index import AUTO, DENSE_KINDS
from dsearch.search_options import MAX_LIMIT, MODES, SearchOptions, joined_names
from dsearch.service.wire.declared_fields import options_from
from dsearch.service.wire.json import parse
from dsearch.service.wire.requests import RequestModel, allowed, encodable, listed
from dsearch.store import Filter, filter_of
from dsearch.types import Document, EmbeddedDocument, Mode, document_members, id_text

MAX_QUERY_CHARACTERS = 8192
MAX_QUERIES = 256
MAX_BATCH_HITS = 25_600
MAX_IDS = 1000  # of the documents to attend to, or to leave out


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    return text


QueryText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARACTERS),
    AfterValidator(_words),
    allowed(f"1 to {MAX_QUERY_CHARACTERS} characters, at least one word"),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), allowed(f"an integer from 1 to {MAX_LIMIT}")]
SearchMode = Annotated[Mode, allowed("hybrid, dense or keyword", MODES)]
Version = Annotated[
    str, Field(pattern=r"^v[0-9]{1,9}$"), allowed("a registered version such as v1; v0 is untrained")
]
FilterGiven = Annotated[dict[str, Any], allowed('an object such as {"year": {"gte": 1990}}')]
FilterText = Annotated[
    str,
    Field(min_length=2, max_length=8192),
    AfterValidator(_words),
    allowed('JSON of 2 to 8192 characters, such as {"year":{"gte":1990}}'),
]
KeyKind = Annotated[
    str, Field(min_length=1, max_length=32), allowed(listed([AUTO, *DENSE_KINDS]))
]  # the engine checks the name, and lists the kinds that are installed
Explore = Annotated[
    float, Field(ge=0, le=MAX_EXPLORE), allowed(f"a share of the pages from 0 to {MAX_EXPLORE}")
]
EpisodeName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    AfterValidator(encodable),
    allowed("a name of 1 to 128 characters"),
]
EpisodeParameter = Annotated[
    EpisodeName | None, Query(description="name of the task for which the document is read")
]
DocumentId = Annotated[
    str,
    BeforeValidator(id_text),
    Field(min_length=1, max_length=512),
    allowed("a string of 1 to 512 bytes, or an integer"),
]
Number = Annotated[float, Field(allow_inf_nan=False)]
# Checked by pydantic alone: a Python call for each number would hold up the event loop.
Vector = Annotated[list[Number], Field(min_length=1, max_length=16_384)]


class FilteredRequest(RequestModel):
    """Filter on documents."""

    filter: FilterGiven | None = Field(
        None,
        description="condition on metadata: {field: {condition: value}}, with eq, ne, gt, "
        "gte, lt, lte, in, nin and exists, under and, or and not; dots lead into objects",
        examples=[{"year": {"gte": 2017}, "not": {"draft": {"eq": True}}}],
    )

    def tree(self) -> Filter | None:
        """The filter, checked.

        Raises:
            InvalidRequest: where it is wrong, and what is allowed there.
        """
        return filter_of(self.filter)


@options_from(SearchOptions, check=False)
class DeclaredFields(FilteredRequest):
    """The options of `SearchOptions`."""

    if TYPE_CHECKING:  # some of the fields that the decorator adds
        limit: int
        offset: int
        sort: str | None

    def options(self) -> SearchOptions:
        """Return the options as the engine takes them.

        Raises:
            InvalidRequest: not a filter.
        """
        return SearchOptions(filter=self.tree(), **dict(zip(_DECLARED, _declared(self), strict=True)))


_DECLARED = tuple(options_of(SearchOptions))
_declared = attrgetter(*_DECLARED)


class SearchFields(DeclaredFields):
    """Options of a search."""

    @field_validator("fields", mode="before", check_fields=False)
    @classmethod
    def _joined(cls, fields: Any) -> Any:
        return joined_names(fields)

    explore: Explore | None = Field(
        None,
        description="share of such pages on which two random positions may swap, to separate preference "
        "from position in feedback; the service's setting, 0 unless set, by default",
    )
    episode: EpisodeName | None = Field(
        None,
        description="name of the task that this search belongs to, whose outcome is reported to …/outcomes",
    )


class SearchRequest(SearchFields):
    """One query."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"query": "how does attention pool values?", "limit": 10, "mode": "hybrid"},
                {
                    "query": 'pooling "attention weights" -convolution',
                    "filter": {"year": {"gte": 2017}},
                    "highlight": True,
                },
            ]
        },
    )

    query: QueryText | None = Field(None, description="text; with a vector its words for the keyword leg")
    vector: Vector | None = Field(
        None, description="in place of the text's embedding; without a query the search is dense"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.query is None and self.vector is None:
            raise ValueError("neither query nor vector; give at least one")
        return self


def tree_of(text: str | None) -> Filter | None:
    """A filter that came as text in a URL; raises InvalidJson, InvalidRequest."""
    return None if text is None else filter_of(parse(text.encode()))


class SearchParameters(SearchFields):
    """One query in the URL."""

    query: QueryText = Field(alias="q", description="the words to search for", examples=["attention pooling"])
    filter: FilterText | None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        None, description="as JSON", examples=['{"year": {"gte": 2017}}']
    )

    def tree(self) -> Filter | None:
        """The filter, read and checked; raises InvalidJson, InvalidRequest."""
        return tree_of(self.filter)


class BatchRequest(SearchFields):
    """Many queries with the same options."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?", "what is a value?"], "limit": 5}]},
    )

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)] | None = Field(
        None, description="texts; with vectors their words for the keyword leg"
    )
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=MAX_QUERIES)] | None = Field(
        None, description="one a query, in place of the texts' embeddings"
    )

    @property
    def texts(self) -> list[str]:
        """The texts, "" for a query without one."""
        return self.queries or [""] * len(self.vectors or [])

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.queries is None and self.vectors is None:
            raise ValueError("neither queries nor vectors; give at least one")
        if self.vectors is not None and len(self.vectors) != len(self.texts):
            raise ValueError(
                f"{amount(len(self.texts), 'query')} and {amount(len(self.vectors), 'vector')}; give as many"
            )
        hits = len(self.texts) * (self.limit + self.offset)
        if hits > MAX_BATCH_HITS:
            raise ValueError(
                f"{amount(hits, 'hit')} of {amount(len(self.texts), 'query')} with limit + offset "
                f"{self.limit + self.offset}; "
                f"use at most {MAX_BATCH_HITS} in one request"
            )
        return self


@options_from(AttentionOptions, check=False)
class AttendFields(FilteredRequest):
    """Texts or vectors, and how they attend to the documents."""

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=64)] | None = Field(
        None, description="texts; give these or vectors"
    )
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="query states [n, dimension], in place of the encoder's; dense search only",
    )
    ids: Annotated[list[DocumentId], Field(min_length=1, max_length=64)] | None = Field(
        None, description="ids of documents whose embeddings are the queries; dense search only"
    )
    among: Annotated[list[DocumentId], Field(max_length=MAX_IDS)] | None = Field(
        None, description="ids of the documents to attend to, such as a user's history; all if not given"
    )
    exclude: Annotated[list[DocumentId], Field(max_length=MAX_IDS)] = Field(
        [], description="ids of documents to leave out, such as those seen already"
    )
    if TYPE_CHECKING:  # some of the fields that the decorator adds
        mode: Mode
        model: str | None
        match_field: str | None

    def attention_options(self) -> dict[str, Any]:
        """Return the options of attention by name, as the engine takes them."""
        return {name: getattr(self, name) for name in (*options_of(AttentionOptions), "among", "exclude")}

    @property
    def characters(self) -> int:
        """Size of the texts."""
        return sum(map(len, self.queries or ()))

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in ("queries", "vectors", "ids") if getattr(self, name) is not None]
        if len(kinds) != 1:
            named = " and ".join(kinds) or "neither queries nor vectors nor ids"
            raise ValueError(f"{named}; give one of queries, vectors and ids")
        return self


class PredictRequest(AttendFields):
    """A field of the documents to pool."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?"], "field": "year"}]},
    )

    field: Annotated[str, Field(min_length=1, max_length=256), allowed("1 to 256 characters")] = Field(
        description="a number, string or boolean of the metadata by its dotted path, or value"
    )
    evidence: Annotated[int, Field(ge=0, le=100), allowed("an integer from 0 to 100")] = Field(
        10, description="documents of largest weight to show with each prediction"
    )


class DocumentGiven(RequestModel):
    """A document to store. Members of other names are metadata."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",  # none is left once they are metadata
        json_schema_extra={
            "examples": [
                {
                    "id": "q-mc2",
                    "title": "Queries, keys, values",
                    "text": "Attention pools …",
                    "metadata": {"year": 2017},
                }
            ]
        },
    )

    id: Annotated[
        str,
        BeforeValidator(id_text),
        Field(min_length=1),
        allowed("a string of 1 to 512 bytes, or an integer"),
    ]
    text: Annotated[str, allowed("a string of at most 1 MiB")] = ""
    title: Annotated[str, allowed("a string of at most 64 KiB")] = ""
    metadata: Annotated[dict[str, Any], allowed("an object of JSON values")] = Field(
        {}, description="any JSON object"
    )
    value: Annotated[Number | list[Number] | None, allowed("a finite number or a list of them")] = Field(
        None, description="what attention can pool"
    )
    embedding: Vector | None = Field(
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
