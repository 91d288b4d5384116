"""The table of routes and scopes in the guide is that of the service, and each of its cells holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dsearch.engine import Collection, SearchEngine
from dsearch.guide import guide
from dsearch.service.keys import SCOPES, ApiKeys, is_open, needed_scope


def operations(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path that the service describes, by path."""
    paths = app.openapi()["paths"]
    return [(method.upper(), path) for path in sorted(paths) for method in sorted(paths[path])]


def scope_table(operations: Iterable[tuple[str, str]]) -> str:
    """Each route and the keys that open it, as a Markdown table: what stands in the guide "operating".

    Args:
        operations: method and path of each route, in the order of the table.
    """
    lines = ["| route | no key | read | write | admin |", "|---|---|---|---|---|"]
    for method, path in operations:
        least = -1 if is_open(path) else SCOPES.index(needed_scope(method, path))
        cells = ["✓" if level >= least else "" for level in range(-1, len(SCOPES))]
        lines.append(f"| `{method} {path}` | {' | '.join(cells)} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def test_the_guide_has_the_table_of_this_service(app: FastAPI) -> None:
    table = scope_table(operations(app))
    assert table in guide("operating"), (
        "put this table into the section Keys of dsearch/guide/operating.md:\n\n" + table
    )


@pytest.fixture
def holders(engine: SearchEngine) -> dict[str, dict[str, str]]:
    """The headers of each holder: of no key, and of a key of each scope."""
    keys = ApiKeys(engine.home.path)
    made = {scope: {"Authorization": f"Bearer {keys.create(scope, scope)[0]}"} for scope in SCOPES}
    return {"no key": {}, **made}


def test_each_cell_of_the_table_holds(
    app: FastAPI, client: TestClient, papers: Collection, holders: dict[str, dict[str, str]]
) -> None:
    """A request that a scope does not open is refused before anything is looked at; others never are."""
    checked = 0
    for method, path in operations(app):
        # Of a collection that is not there: an admin's request changes nothing either.
        given = re.sub(r"\{[^}]*\}", "x", path)
        least = -1 if is_open(path) else SCOPES.index(needed_scope(method, path))
        for level, (holder, headers) in enumerate(holders.items(), start=-1):
            status = client.request(method, given, headers=headers).status_code
            if level >= least:
                assert status not in (401, 403), (method, path, holder)
            else:
                assert status == (401 if holder == "no key" else 403), (method, path, holder)
            checked += 1
    assert checked > 100


def test_what_changes_data_needs_more_than_read(app: FastAPI) -> None:
    asking = (
        "search",
        "search/batch",
        "similar",
        "facets",
        "attend",
        "vjp",
        "predict",
        "heads",
        "heads/{draft}",
    )
    compatible = (
        "/retrieve",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
    )
    for method, path in operations(app):
        asks = path in compatible or path.endswith(tuple(f"}}/{name}" for name in asking))
        if method not in ("GET", "HEAD") and not asks:
            assert needed_scope(method, path) != "read", (method, path)
