"""The page ranks again where documents have tokens, and tells like meaning from the query's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.service.browsing import needs_chromium, opened_page
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine
from dsearch.types import Document

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A collection with tokens, one long document in it, and one without."""
    home = tmp_path_factory.mktemp("staged") / "home"
    long = "river stones lie in the river . " + "nothing else is said of lamps or music here . " * 12
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("plain").ingest(documents(5))
        engine.create("staged").ingest([Document("long", long, title="Banks")], second_stage=True)
    with serving(home) as (origin, _):
        yield origin


def test_a_second_look_is_offered_where_there_are_tokens(browser: Any, staged: str) -> None:
    with opened_page(browser, staged) as page:
        sent: list[dict[str, Any]] = []
        page.on(
            "request", lambda request: sent.append(request.post_data_json) if _searches(request) else None
        )
        page.goto("/#c=plain&q=river")
        page.locator(".hit").first.wait_for()
        playwright.expect(page.get_by_label("Second look")).to_be_hidden()
        page.goto("/#c=staged&q=river")
        page.reload()
        page.get_by_label("Second look").check()
        page.locator(".hit mark").first.wait_for()
        assert "look=1" in page.url
        assert (sent[-1]["stages"], sent[-1]["highlight_by"]) == (2, "meaning")
        assert page.locator(".hit mark:not(.alike)").first.inner_text() == "river"
        page.locator("input[value=keyword]").check(force=True)  # by keywords alone there is no second look
        page.locator(".hit").first.wait_for()
        expect(page.locator("body")).not_to_have_class(re.compile("busy"))
        assert "stages" not in sent[-1]


def _searches(request: Any) -> bool:
    return request.method == "POST" and request.url.endswith("/search")
