"""The calls that manage models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsearch.client import wire
from dsearch.client.flow import TENSORS, Flow, Request, operation
from dsearch.client.wire import head_file, path_of, question
from dsearch.results import DraftAdded, MemoryResult, ModelAdded, Models, PromotionResult, RowsDropped


class ModelOperations:
    """The versions of a collection, and their heads."""

    @operation
    def models(self, collection: str) -> Flow[Models]:
        """List every version with its record; v0 is the untrained one. `GET …/models`"""
        answer = yield Request("GET", path_of(collection, "models"))
        return wire.parse(Models, wire.content_of(answer))

    @operation
    def promote(self, collection: str, version: str) -> Flow[PromotionResult]:
        """Make a version live; to undo it promote `previous`. `POST …/promote`

        Args:
            collection: its name.
            version: a version; v0 is the untrained one.
        """
        path = path_of(collection, "models", version, "promote")
        answer = yield Request("POST", path, writes=True)
        return wire.parse(PromotionResult, wire.content_of(answer))

    @operation
    def rollback(self, collection: str) -> Flow[PromotionResult]:
        """Make the version live again that answered before. `POST …/models/rollback`"""
        path = path_of(collection, "models", "rollback")
        answer = yield Request("POST", path, writes=True, repeatable=False)
        return wire.parse(PromotionResult, wire.content_of(answer))

    @operation
    def rollback_rows(self, collection: str, sequence: int) -> Flow[RowsDropped]:
        """Drop the rows of the query memory that later operations wrote. `POST …/models/rollback-rows`

        Args:
            collection: its name.
            sequence: operation whose rows, and earlier ones, stay.
        """
        posted = question(collection, "models/rollback-rows", {"sequence": sequence})
        answer = yield replace(posted, repeatable=False, writes=True)
        return wire.parse(RowsDropped, wire.content_of(answer))

    @operation
    def remember(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        *,
        accept: bool = False,
    ) -> Flow[MemoryResult]:
        """Add judged queries to the live version's memory, without training. `POST …/models/remember`

        Args:
            collection: its name.
            queries: query id → text; at most 1,000.
            judgements: query id → document id → grade, above 0 for documents that answer the query.
            accept: begin a memory with default settings where the live version has none.
        """
        body = {"queries": queries, "judgements": judgements, "accept": accept}
        posted = question(collection, "models/remember", body)
        answer = yield replace(posted, repeatable=False, writes=True)
        return wire.parse(MemoryResult, wire.content_of(answer))

    @operation
    def delete_model(self, collection: str, version: str) -> Flow[None]:
        """Delete a version that is not live; what was trained from it goes on. `DELETE …/models/{version}`"""
        yield Request("DELETE", path_of(collection, "models", version), writes=True)

    @operation
    def head(self, collection: str, version: str) -> Flow[dict[str, Any]]:
        """Return the tensors of a version's head, as NumPy arrays by name. `GET …/models/{version}/head`"""
        answer = yield Request("GET", path_of(collection, "models", version, "head"), accept=TENSORS)
        return wire.tensors_of(answer.content)[1]

    @operation
    def draft_head(
        self, collection: str, tensors: Mapping[str, Any], *, parent: str | None = None
    ) -> Flow[DraftAdded]:
        """Hand a head in for a while: `attend` and `vjp` answer by it with `draft=…`. `POST …/heads`

        Args:
            collection: its name.
            tensors: named and shaped as `head` gives them.
            parent: version whose encoder and documents it answers with; the live one when None.
        """
        chosen = {} if parent is None else {"parent": parent}
        body = head_file(tensors, None)
        answer = yield Request("POST", path_of(collection, "heads"), chosen, body, TENSORS)
        return wire.parse(DraftAdded, wire.content_of(answer))

    @operation
    def draft_tensors(self, collection: str, draft: str) -> Flow[dict[str, Any]]:
        """Return the tensors of a draft head, as NumPy arrays by name. `GET …/heads/{draft}`"""
        answer = yield Request("GET", path_of(collection, "heads", draft), accept=TENSORS)
        return wire.tensors_of(answer.content)[1]

    @operation
    def drop_draft(self, collection: str, draft: str) -> Flow[None]:
        """Forget a draft head; one that is gone already is no error. `DELETE …/heads/{draft}`"""
        yield Request("DELETE", path_of(collection, "heads", draft))

    @operation
    def add_model(
        self,
        collection: str,
        tensors: Mapping[str, Any],
        *,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> Flow[ModelAdded]:
        """Add a head that was trained elsewhere as a new version, which is not live. `POST …/models`

        Args:
            collection: its name.
            tensors: named and shaped as `head` gives them.
            parent: the version that it was trained from; the live one when None.
            record: what should be known of it later, as JSON.
        """
        answer = yield Request(
            "POST",
            path_of(collection, "models"),
            {} if parent is None else {"parent": parent},
            head_file(tensors, record),
            TENSORS,
            repeatable=False,
            writes=True,
        )
        return wire.parse(ModelAdded, wire.content_of(answer))
