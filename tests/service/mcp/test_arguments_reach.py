"""Each argument of each tool of agents reaches what does the work, and so does the key of who calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.cli.recorder import holds
from support.service.apps import patient_app
from support.service.reach import Call, changes, leaves, record_work
from support.service.service_fakes import ORIGIN, WordEncoder, documents

from dsearch.engine import SearchEngine
from dsearch.errors import CorruptData, DsearchError
from dsearch.service.batching.worker import Worker
from dsearch.service.mcp.tools import TOOLS, ToolCaller

TASK = "given-episode"
CALLS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("search", {"query": "given-query", "collection": "papers", "episode": TASK}, ()),
    ("search", {"query": "given-query"}, ("collection",)),
    ("fetch", {"id": "papers/d001"}, ()),
    ("add_documents", {"collection": "papers", "documents": [{"id": "given-id", "text": "given-text"}]}, ()),
    ("report_outcome", {"episode": TASK, "useful_ids": ["papers/d001"], "success": False}, ()),
]
"""Each tool, its smallest call, and what this way has not."""
VALUES = {
    "id": ("papers/d001", "d001"),
    "useful_ids": (["papers/d001"], "d001"),
    "metadata": ({"given-field": 37}, "given-field"),
    "embedding": ([0.25, 0.75], 0.75),
}
KEYLESS = {"add_documents": "documents have no author"}


class Caller(NamedTuple):
    """Calls tools as the holder of a key."""

    client: TestClient
    app: FastAPI
    made: list[Call]

    def calls(self, name: str, arguments: dict[str, Any]) -> list[Any]:
        """What a call of a tool calls."""
        assert self.client.portal is not None
        self.made.clear()
        tool = TOOLS[name]
        request = tool.arguments.model_validate(arguments)
        caller = ToolCaller("admin", key="given-key")
        with suppress(DsearchError):
            self.client.portal.call(tool.run, self.app.state.service, request, caller)
        return [[call.name, call.arguments] for call in self.made]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    home = tmp_path_factory.mktemp("reach") / "home"
    with pytest.MonkeyPatch.context() as patch, SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(12))
        app, made = patient_app(engine), record_work(patch, {})
        with TestClient(app, base_url=ORIGIN) as client:
            yield Caller(client, app, made)


@pytest.mark.parametrize(("name", "smallest", "without"), CALLS)
def test_each_argument_reaches_what_does_the_work(
    caller: Caller, name: str, smallest: dict[str, Any], without: tuple[str, ...]
) -> None:
    lost = []
    for change in changes(TOOLS[name].arguments, smallest, VALUES, without):
        calls = caller.calls(name, change.request)
        plainly = None if change.without is None else caller.calls(name, change.without)
        missing = [leaf for leaf in leaves(change.arrives) if not holds(calls, leaf)]
        if not calls or calls == plainly or missing:
            lost.append(f"{change.path}: {missing or change.arrives} does not arrive: {calls}")
        if name not in KEYLESS and "episode" in change.request and not holds(calls, "given-key"):
            lost.append(f"{change.path}: the key does not arrive: {calls}")
    assert not lost, "\n".join(lost)


def test_whether_a_task_succeeded_is_another_outcome(caller: Caller) -> None:
    search = {"query": "given-query", "collection": "papers"}
    told: list[Any] = []
    for task, success in (("given-one", True), ("given-two", False)):
        caller.calls("search", {**search, "episode": task})
        report = {"episode": task, "useful_ids": ["papers/d001"], "success": success}
        told.append([call for call in caller.calls("report_outcome", report) if holds(call, success)])
    assert all(told)


def test_an_id_has_slashes_of_its_own_behind_that_of_its_collection(caller: Caller) -> None:
    assert holds(caller.calls("fetch", {"id": "papers/given/id"}), "given/id")


def test_an_error_of_every_collection_is_that_of_the_search(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(*_: Any, **__: Any) -> Any:
        raise CorruptData("given-problem")

    monkeypatch.setattr(Worker, "submit", damaged)
    assert caller.client.portal is not None
    request = TOOLS["search"].arguments.model_validate({"query": "given-query"})
    with pytest.raises(CorruptData, match="given-problem"):
        caller.client.portal.call(
            TOOLS["search"].run, caller.app.state.service, request, ToolCaller("admin", key="given-key")
        )


def test_no_tool_is_forgotten() -> None:
    takes_nothing = {name for name, tool in TOOLS.items() if not tool.arguments.model_fields}
    assert {name for name, _, _ in CALLS} == TOOLS.keys() - takes_nothing
