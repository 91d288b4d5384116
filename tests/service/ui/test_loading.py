"""Words that are typed while the page loads: they are searched where its address says, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from support.service.browsing import needs_chromium, opened_page
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.attention.retrieval.head import Head
from dsearch.engine import SearchEngine

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose first collection and live version are not those of the address."""
    home = tmp_path_factory.mktemp("loading") / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        made.create("aside").ingest(documents(20))
        papers = made.create("papers")
        papers.ingest(documents(30))
        papers.promote(papers.add_model(Head(papers.store.dimension), {}))
    with serving(home) as (address, _):
        yield address


@pytest.mark.parametrize("late", ["**/ui/*.js", "**/v1/collections", "**/models"])
def test_words_typed_while_the_page_loads(browser: Any, origin: str, late: str) -> None:
    with opened_page(browser, origin) as page:
        held: list[Any] = []
        asked: list[tuple[str, Any]] = []
        page.on(
            "request",
            lambda one: asked.append((one.url, one.post_data_json)) if one.url.endswith("/search") else None,
        )
        page.route(late, lambda route: held.append(route))
        page.goto("/#c=papers&m=v0&mode=keyword", wait_until="commit")
        while not held:
            page.wait_for_timeout(10)
        page.locator("#query").fill("river")
        page.locator("#query").press("Enter")
        page.unroute(late)  # which lets go of them
        page.locator(".hit").first.wait_for()
        page.settle()
        url, request = asked[-1]
        assert url.endswith("/papers/search")
        assert (request["query"], request["model"], request["mode"]) == ("river", "v0", "keyword")
        said = parse_qs(page.evaluate("location.hash.slice(1)"))
        assert said == {"c": ["papers"], "m": ["v0"], "mode": ["keyword"], "q": ["river"]}
