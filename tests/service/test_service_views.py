"""Every view of the page in a real browser, one journey through them, and what axe says of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import needs_chromium, opened_page
from service_fakes import NASTY, WordEncoder, documents, serving

from dsearch.engine import SearchEngine

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect
VIEWS = ("search", "compare", "train", "collection", "attend", "jobs", "console")


def test_compare_shows_two_systems_and_what_moved(page: Any) -> None:
    page.goto("/#c=papers&v=compare")
    page.get_by_label("Query").fill("river stone")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".columns section")).to_have_count(2)
    moves = page.locator(".columns .parts").all_inner_texts()
    assert len(moves) == 20
    assert any(re.match(r"[▲▼] from \d+|only here|is \d+ on the right", move) for move in moves)


def test_judged_queries_are_scored_beside_each_other(page: Any, tmp_path: Path) -> None:
    judged = tmp_path / "judgements.csv"
    judged.write_text("query,document,grade\n" + "".join(f"river stone {i},d{i:03d},1\n" for i in range(12)))
    page.goto("/#c=papers&v=compare")
    page.get_by_label("Files with judgements").set_input_files(judged)
    page.get_by_text("12 queries, 12 judgements.").wait_for()
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text("Means; below, the difference to hybrid").wait_for(timeout=90_000)
    assert page.get_by_role("columnheader", name="keyword").count() == 1
    page.goto("/#c=papers&v=jobs")
    page.get_by_text("evaluate · papers · done").first.wait_for()


def test_a_collection_shows_figures_a_map_and_documents_that_come_and_go(page: Any, tmp_path: Path) -> None:
    page.goto("/#c=papers&v=collection")
    page.locator(".chart circle").nth(59).wait_for()
    assert page.get_by_role("cell", name="documents", exact=True).count() == 1
    added = tmp_path / "added.txt"
    added.write_text("a page about herons")
    page.get_by_label("Files to add").set_input_files(added)
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("1 new, 0 changed, 0 unchanged.").wait_for()
    page.reload()
    page.get_by_role("button", name="Delete added.txt").click()
    page.get_by_role("button", name="Delete added.txt").click()
    expect(page.get_by_role("cell", name="added.txt", exact=True)).to_have_count(0)


def test_attention_follows_the_dials(page: Any) -> None:
    page.goto("/#c=papers&v=attend")
    shop = page.locator("section", has=page.get_by_text("In the supermarket"))
    before = shop.locator(".prediction").inner_text()
    shop.get_by_label("Pooling").select_option("hard")
    expect(shop.locator(".prediction")).not_to_have_text(before)
    assert shop.locator(".share").all_inner_texts().count("100 %") == 1
    page.get_by_label("Query").fill("river stone")
    page.get_by_role("button", name="Attend").click()
    page.locator("#view > div .bars li").first.wait_for()
    page.get_by_label("Predict").select_option("i")
    page.get_by_text(re.compile(r"i ≈ [\d.]+ ± [\d.]+")).wait_for()


def test_the_console_has_requests_to_copy(page: Any) -> None:
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    page.get_by_role("link", name="Console").click()
    entry = page.locator("details", has_text="/v1/collections/papers/search").first
    entry.locator("summary").click()
    curl, python = entry.locator("pre").all_inner_texts()
    assert curl.startswith("curl -s -X POST")
    assert '"query":"river"' in curl
    assert '"query": "river"' in python


def test_filters_explanations_and_likeness(page: Any) -> None:
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    page.locator("#filters summary").click()
    page.locator(".facet input").first.check()
    expect(page.locator(".hit")).to_have_count(1)
    page.locator(".facet input").first.uncheck()
    expect(page.locator(".hit")).to_have_count(10)
    page.locator(".why summary").first.click()
    page.locator(".why td").first.wait_for()
    first = page.locator(".hit h2").first.inner_text()
    page.get_by_role("button", name="More like this").first.click()
    expect(page.locator("#status")).to_have_text(f"Like {first}")
    assert first not in page.locator(".hit h2").all_inner_texts()


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("learning") / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        made.create("papers").ingest(documents(10))
    with serving(home) as (origin, _):
        yield origin


def test_from_a_search_over_thumbs_and_training_to_a_better_answer_and_back(
    browser: Any, learning: str, tmp_path: Path
) -> None:
    judged = tmp_path / "judgements.jsonl"
    pairs = [{"query": f"zebra{i}", "document": f"d{i:03d}", "grade": 1} for i in range(10)]
    judged.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    with opened_page(browser, learning) as page:

        def share() -> float:
            """Of the attention that the right document has, summed over the queries."""
            shares = []
            for i in range(10):
                page.goto(f"/#c=papers&q=zebra{i}")
                page.reload()
                hit = page.locator(".hit", has=page.get_by_text(f"d{i:03d}", exact=True))
                hit.wait_for()
                shares.append(float(re.findall(r"[\d.]+", hit.locator(".share").inner_text())[0]))
            return sum(shares)

        before = share()
        page.get_by_label("Keep my clicks to learn from").check()
        page.get_by_role("button", name="This fits").first.click()
        page.get_by_text("Kept: it fits").wait_for()

        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_label("Files with judgements").set_input_files(judged)
        page.get_by_label("Let it go live whatever held-out queries say").check()
        page.get_by_role("button", name="Train on these").click()
        page.get_by_text("v1 answers now.").wait_for(timeout=120_000)
        assert page.locator(".chart path").count() > 0
        assert share() > before + 1

        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_role("button", name="Roll back").click()
        expect(page.get_by_role("row", name=re.compile(r"^v0 .*answers now"))).to_be_visible()
        assert share() == pytest.approx(before)
        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("row", name=re.compile("v1.*answers now"))).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_of_a_document_runs(page: Any, view: str) -> None:
    assert NASTY
    page.goto(f"/#c=nasty&v={view}&q=cat")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.attacked") is None
    assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_and_a_phone_is_wide_enough(
    browser: Any, server: str, view: str, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    context = browser.new_context(
        base_url=server, viewport={"width": 360, "height": 640}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.goto(f"/#c=papers&v={view}&q=river")
    page.wait_for_timeout(1500)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    context.close()
