"""Calls that manage the versions of a collection, and their heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Annotated, Any

from dsearch.declared import Values
from dsearch.fields import Flag, Judgements, Queries, Version
from dsearch.operations.declared import Call, call
from dsearch.results import DraftAdded, MemoryResult, ModelAdded, Models, PromotionResult, RowsDropped

Tensors = Mapping[str, Any]
MAX_REMEMBERED = 1000  # they are encoded before the answer


@call("GET", "/v1/collections/{collection}/models")
class ListModels(Call[Models]):
    """List every version with its record; v0 is the untrained one."""

    collection: str


@call("POST", "/v1/collections/{collection}/models/{version}/promote")
class Promote(Call[PromotionResult]):
    """Make a version live. Nothing is rebuilt; to undo it, promote `previous`.

    Args:
        collection: its name.
        version: a version; v0 is the untrained one.
    """

    collection: str
    version: str


@call("POST", "/v1/collections/{collection}/models/rollback", repeatable=False)
class Rollback(Call[PromotionResult]):
    """Make the previously live version live again."""

    collection: str


@call("POST", "/v1/collections/{collection}/models/rollback-rows", repeatable=False)
class RollbackRows(Call[RowsDropped]):
    """Drop the rows of the query memory that later operations wrote; versions stay.

    Args:
        collection: its name.
        sequence: rows that later operations wrote are dropped.
    """

    collection: str
    sequence: Annotated[int, Values("an integer of at least 0", low=0)]


@call("POST", "/v1/collections/{collection}/models/remember", repeatable=False)
class Remember(Call[MemoryResult]):
    """Add judged queries to the memory of the live version, at once and without training.

    Later searches that resemble one of them find its documents. To undo it, roll back the rows.

    Args:
        collection: its name.
        queries: query id → text.
        judgements: query id → document id → grade, above 0 for documents that answer the query.
        accept: begin a memory with default settings where the live version has none.
    """

    collection: str
    queries: Annotated[Queries, Values(shortest=1, longest=MAX_REMEMBERED)]
    judgements: Annotated[Judgements, Values(shortest=1, longest=MAX_REMEMBERED)]
    _: KW_ONLY
    accept: Flag = False


@call("DELETE", "/v1/collections/{collection}/models/{version}")
class DeleteModel(Call[None]):
    """Delete a version that is not live. What was trained from it goes on with its parent."""

    collection: str
    version: str


@call("GET", "/v1/collections/{collection}/models/{version}/head")
class ReadHead(Call[dict[str, Any]]):
    """Return the tensors of a version's head; for v0, those that training starts from."""

    collection: str
    version: str


@call("POST", "/v1/collections/{collection}/heads", scope="read", query=("parent",))
class AddDraft(Call[DraftAdded]):
    """Hand a head in for a while: `attend` and `vjp` answer by it where they name it as `draft`.

    It is no version.

    Args:
        collection: its name.
        tensors: named and shaped as `head` gives them.
        parent: version whose encoder and documents it answers with; the live one when None.
    """

    collection: str
    tensors: Tensors
    _: KW_ONLY
    parent: Version | None = None


@call("GET", "/v1/collections/{collection}/heads/{draft}")
class ReadDraft(Call[dict[str, Any]]):
    """Return the tensors of a draft head: to go on with, or to make a version of."""

    collection: str
    draft: str


@call("DELETE", "/v1/collections/{collection}/heads/{draft}", scope="read")  # nobody else's
class DropDraft(Call[None]):
    """Forget a draft head; one that is gone already is no error."""

    collection: str
    draft: str


@call("POST", "/v1/collections/{collection}/models", query=("parent",), repeatable=False)
class AddModel(Call[ModelAdded]):
    """Add a head that was trained elsewhere as a new version. It is not live: promote it.

    Args:
        collection: its name.
        tensors: named and shaped as `head` gives them.
        parent: the version that it was trained from; the live one when None.
        record: what should be known of it later, as JSON.
    """

    collection: str
    tensors: Tensors
    _: KW_ONLY
    parent: Version | None = None
    record: Mapping[str, Any] | None = None
