"""Versions and their heads, by an engine in this process; see `dsearch/operations/models.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsearch import operations, results
from dsearch.client.local.handlers import handles
from dsearch.client.wire import head_file
from dsearch.engine import calls

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.client.local.engine import LocalEngine


@handles(operations.Remember)
def remember(local: LocalEngine, call: operations.Remember) -> results.MemoryResult:
    from dsearch.training import remember

    opened = local.engine.collection(call.collection)
    return remember(opened, call.queries, call.judgements, accept=call.accept)


@handles(operations.ReadHead)
def read_head(local: LocalEngine, call: operations.ReadHead) -> dict[str, Any]:
    return _arrays_of(local.engine.collection(call.collection).head(call.version))


@handles(operations.AddDraft)
def draft_head(local: LocalEngine, call: operations.AddDraft) -> results.DraftAdded:
    opened = local.engine.collection(call.collection)
    return calls.add_draft(opened, head_file(call.tensors, None), call.parent)


@handles(operations.ReadDraft)
def read_draft(local: LocalEngine, call: operations.ReadDraft) -> dict[str, Any]:
    return _arrays_of(local.engine.collection(call.collection).drafts.get(call.draft, "").head)


@handles(operations.DropDraft)
def drop_draft(local: LocalEngine, call: operations.DropDraft) -> None:
    calls.drop_draft(local.engine.collection(call.collection), call.draft)


@handles(operations.AddModel)
def add_model(local: LocalEngine, call: operations.AddModel) -> results.ModelAdded:
    opened = local.engine.collection(call.collection)
    return calls.add_head(opened, head_file(call.tensors, call.record), call.parent)


def _arrays_of(head: Head) -> dict[str, Any]:
    from dsearch.engine import head_tensors

    return {name: tensor.numpy().copy() for name, tensor in head_tensors(head).items()}
