"""What the page says of waiting documents, front matter, backups and keys; and what a finger can hit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.service.browsing import needs_chromium, opened_page
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine
from dsearch.service.keys import ApiKeys
from dsearch.types import Document

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect


@pytest.fixture(scope="module")
def half_encoded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a collection that was interrupted, and of one of files, which wants a key."""
    home = tmp_path_factory.mktemp("half") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("half").store.upsert(documents(3))
        files = [
            Document(
                f"f{i}",
                "",
                f"river stone {i}",
                {"path": f"f{i}.md", "size": 100 + i % 2, "kind": "ab"[i % 2]},
            )
            for i in range(12)
        ]
        engine.create("files").ingest(files)
    with serving(home) as (origin, _):
        yield origin


def test_documents_that_wait_are_named_with_the_command(browser: Any, half_encoded: str) -> None:
    with opened_page(browser, half_encoded) as page:
        page.goto("/#c=half&q=river")
        expect(page.locator("#status")).to_have_text(
            "Nothing found. 3 documents cannot be found yet: indexing was interrupted before they were "
            "encoded. To go on, in a terminal: dsearch index -c half"
        )
        assert page.locator("#status code").inner_text() == "dsearch index -c half"
        page.fill("#query", "")
        page.get_by_role("heading", name="0 documents to ask").wait_for()
        expect(page.locator("#hint")).to_contain_text("3 documents cannot be found yet")


def test_a_finger_can_hit_filters_and_sizes_of_files_are_none(browser: Any, half_encoded: str) -> None:
    with opened_page(browser, half_encoded) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto("/#c=files&q=river+stone")
        page.locator("#filters summary").click()
        expect(page.locator(".facet legend")).to_have_text(["kind"])
        for target in page.locator("#filters label, #filters summary").all():
            assert target.bounding_box()["height"] >= 24
        page.set_viewport_size({"width": 1280, "height": 900})
        left = {page.locator(name).bounding_box()["x"] for name in ("header", "main#search", "footer")}
        assert len(left) == 1


def test_backups_and_keys_are_said_in_commands_with_the_reason(page: Any) -> None:
    page.goto("/#c=papers&v=collection")
    page.get_by_role("heading", name="Back it up").wait_for()
    commands = page.locator(".commands code").all_inner_texts()
    assert commands[:2] == ["dsearch backup FOLDER -c papers", "dsearch restore FOLDER"]
    assert [command.split()[2] for command in commands[2:]] == ["create", "list", "revoke"]
    page.get_by_text(re.compile("which no request may name")).wait_for()
    page.get_by_text("This tab sends no key.").wait_for()


def test_a_key_is_forgotten_by_a_click(browser: Any, tmp_path: Path) -> None:
    with SearchEngine(tmp_path, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(5))
    admin = ApiKeys(tmp_path).create("me", "admin")[0]
    with serving(tmp_path) as (origin, _), opened_page(browser, origin) as page:
        page.goto("/#c=papers&v=collection")
        page.get_by_label("This server asks for an API key").fill(admin)
        page.get_by_role("button", name="Unlock").click()
        page.get_by_text("This tab sends a key with every request.").wait_for()
        page.get_by_role("button", name="Forget it").click()
        expect(page.get_by_label("This server asks for an API key")).to_be_focused()
        assert page.evaluate("sessionStorage.getItem('dsearch-key')") is None
        page.wrong[:] = [one for one in page.wrong if "401" not in one]
