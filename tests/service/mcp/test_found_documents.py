"""What agents are told of documents that a search found, and whose page it is."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from dsearch.engine import Collection
from dsearch.service.mcp.tools import TOOLS, ToolCaller, _title, _url
from dsearch.types import Document


def searched(client: TestClient, app: FastAPI, **arguments: Any) -> list[str]:
    """Ids of what a holder of the key "ann" finds."""
    tool = TOOLS["search"]
    request = tool.arguments.model_validate({"query": "cat", **arguments})
    assert client.portal is not None
    found: Any = client.portal.call(tool.run, app.state.service, request, ToolCaller("read", key="ann"))
    return [one.id for one in found.results]


def test_a_damaged_collection_keeps_no_other_from_answering(
    client: TestClient, app: FastAPI, papers: Collection
) -> None:
    for name in ("broken", "worse"):
        folder = papers.store.path.with_name(name)
        folder.mkdir()
        (folder / "documents.db").write_bytes(b"no database")
    ids = searched(client, app, limit=3)
    assert [id.partition("/")[0] for id in ids] == ["papers"] * 3


def test_a_page_is_of_the_key_that_searched(client: TestClient, app: FastAPI, papers: Collection) -> None:
    searched(client, app, collection="papers")
    pages = app.state.service.impressions._pages.values()
    assert [page.key for page in pages] == ["ann"]


@pytest.mark.parametrize(
    ("document", "title"),
    [
        (Document("d", "text", "T"), "T"),
        (Document("d", "\n  first \nsecond", " "), "first"),
        (Document("d", "x" * 80), "x" * 80),
        (Document("d", "x" * 81), "x" * 79 + "…"),
        (Document("d", " \n"), "d"),
    ],
    ids=["own", "first line", "just fits", "cut", "id"],
)
def test_a_title_is_one_line_of_at_most_80_characters(document: Document, title: str) -> None:
    assert _title(document) == title


@pytest.mark.parametrize("url", [None, "", 7])
def test_an_address_leads_to_the_document_whatever_its_id(url: Any) -> None:
    document = Document("../a b", "x", metadata={"url": url})
    place = "papers/documents/..%2Fa%20b"
    assert (
        _url("papers", document, ToolCaller("read", address="http://h")) == f"http://h/v1/collections/{place}"
    )
    assert _url("papers", document, ToolCaller("read")) == "dsearch://papers/..%2Fa%20b"
