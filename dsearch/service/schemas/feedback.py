"""Feedback requests: events with the names of Search UBI."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from dsearch.declared import Values
from dsearch.fields import QueryText, encodable
from dsearch.service.wire.requests import BoundedErrors, RequestModel

MAX_EVENTS = 1000
ActionName = Literal[
    "click",
    "watch",
    "add_to_cart",
    "purchase",
    "partly",
    "thumbs_up",
    "answer",
    "thumbs_down",
    "used",
    "read",
    "dismissed",
]
ACTION_NAMES: tuple[str, ...] = get_args(ActionName)


def _moment(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if not 1970 <= moment.year <= 9000:
        raise ValueError("out of range")
    return text


Name = Annotated[
    str, Field(max_length=128), AfterValidator(encodable), Values("a string of at most 128 characters")
]
Ordinal = Annotated[int, Field(ge=1, le=11_000), Values("a position counted from 1")]
Moment = Annotated[
    str, Field(max_length=64), AfterValidator(_moment), Values("a time such as 2026-01-31T12:00:00Z")
]


class Position(RequestModel):
    """Position of a document on its page."""

    model_config = ConfigDict(strict=True)

    ordinal: Ordinal = Field(description="counted from 1")


class EventAttributes(RequestModel):
    """More about an event."""

    model_config = ConfigDict(strict=True)

    position: Position | None = Field(
        None, description="checked against the page; not needed beside query_id"
    )


class EventGiven(RequestModel):
    """Something that somebody did with a document that was found."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "query_id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
                    "client_id": "browser-17",
                    "action_name": "click",
                    "object_id": "q-mc2",
                    "event_attributes": {"position": {"ordinal": 1}},
                    "timestamp": "2026-01-31T12:00:00Z",
                },
                {"user_query": "attention pooling", "action_name": "thumbs_up", "object_id": "q-mc2"},
            ]
        },
    )

    action_name: Annotated[ActionName, Values(", ".join(ACTION_NAMES))]
    object_id: Annotated[
        str,
        Field(min_length=1, max_length=512),
        AfterValidator(encodable),
        Values("the id of a document, at most 512 characters"),
    ]
    query_id: Annotated[Name, Field(min_length=1)] | None = Field(None, description="query_id of the answer")
    user_query: QueryText | None = Field(
        None, description="text of the query, if the search is unknown to the server"
    )
    client_id: Name = Field("", description="the user's browser or session")
    event_id: Annotated[Name, Field(min_length=1)] | None = Field(
        None, description="a repeated id counts once; derived from the other fields by default"
    )
    event_attributes: EventAttributes | None = None
    timestamp: Moment | None = Field(None, description="ISO 8601; UTC without an offset")
    session_id: Name | None = Field(None, description="field of Search UBI; not stored")
    application: Name | None = Field(None, description="field of Search UBI; not stored")

    @model_validator(mode="after")
    def _some_query(self) -> Self:
        if self.query_id is None and self.user_query is None:
            raise ValueError("neither query_id nor user_query; give the query_id of a search's answer")
        return self

    @property
    def ordinal(self) -> int | None:
        """The position, where it was given."""
        attributes = self.event_attributes
        return attributes.position.ordinal if attributes and attributes.position else None

    @property
    def time_s(self) -> float | None:
        """The time in seconds since 1970, where it was given."""
        if self.timestamp is None:
            return None
        moment = datetime.fromisoformat(self.timestamp)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


Events = Annotated[list[EventGiven], Field(min_length=1, max_length=MAX_EVENTS), BoundedErrors()]
