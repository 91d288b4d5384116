"""The views under attack, on a phone, to a screen reader, and while they load."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.service.browsing import Settling, needs_chromium, opened_page, page_of_its_own
from support.service.service_fakes import IMAGE, NASTY, SCRIPT, WordEncoder, documents, serving

from dsearch.attention.retrieval.head import Head
from dsearch.engine import SearchEngine

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect
VIEWS = ("search", "compare", "train", "collection", "attend", "jobs", "console")
ATTACK = f"cat {IMAGE}{SCRIPT}"


def unharmed(page: Any) -> None:
    """Nothing ran, and nothing of it became an element."""
    assert page.evaluate("window.attacked") is None
    assert page.locator("main script, main img, main iframe, [onerror], [onclick]").count() == 0


# ---- what is written in documents, and in every field


def views(page: Any, address: str) -> Iterator[str]:
    """Each view at an address with `{view}` in it, loaded anew."""
    for view in VIEWS:
        page.goto("about:blank")
        page.goto(address.format(view=view))
        page.settle()
        yield view


def test_nothing_of_a_document_runs(page: Any) -> None:
    assert NASTY
    for view in views(page, "/#c=nasty&v={view}&q=cat"):
        expect(page.locator("main:not([hidden])"), view).to_have_count(1)
        unharmed(page)


def test_nothing_of_an_address_runs(page: Any) -> None:
    for _ in views(page, f"/#c=nasty&v={{view}}&q={ATTACK}&a={ATTACK}&b={ATTACK}&mode={ATTACK}"):
        unharmed(page)
    page.goto(f"/#v={ATTACK}&c={ATTACK}")
    page.reload()
    expect(page.locator("#query")).to_be_visible()  # no such view: the search
    unharmed(page)


@pytest.mark.parametrize("view", ["search", "compare", "collection", "attend"])
def test_nothing_that_is_typed_into_a_field_runs(page: Any, view: str) -> None:
    page.goto(f"/#c=nasty&v={view}")
    if view != "search":  # which shows until the script has chosen the view
        expect(page.locator("#query")).to_be_hidden()
    fields = page.locator("main:not([hidden]) input[type=search]")
    expect(fields.first).to_be_visible()
    for field in fields.all():
        field.fill(ATTACK)
        field.press("Enter")
        page.settle()
        unharmed(page)
    if view == "search":  # a facet has the name and the value of a nasty field
        page.locator("#filters summary").click()
        page.locator(".facet input").first.check()
        page.settle()  # or what is clicked next is that of the answer before
        page.locator(".why summary").first.click()
        page.get_by_role("button", name="More like this").first.click()
        page.settle()
        unharmed(page)


def test_nothing_of_a_file_runs(page: Any, tmp_path: Path) -> None:
    judged = tmp_path / "judged.jsonl"
    judged.write_text(json.dumps({"query": ATTACK, "document": NASTY[0].id, "grade": 1}) + "\n")
    page.goto("/#c=nasty&v=compare")
    page.get_by_label("Files with judgements").set_input_files(judged)
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text(re.compile("Means; below|failed")).first.wait_for()
    unharmed(page)
    bad = tmp_path / f"{IMAGE.replace('/', '')}.jsonl"
    bad.write_text("{")
    page.get_by_label("Files with judgements").set_input_files(bad)
    page.get_by_text("line 1: not JSON").wait_for()
    unharmed(page)
    page.goto("/#c=nasty&v=collection")
    added = tmp_path / "added.jsonl"
    added.write_text(json.dumps({"id": ATTACK, "text": ATTACK, "metadata": {ATTACK: ATTACK}}) + "\n")
    page.get_by_label("Files to add").set_input_files(added)
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("1 new, 0 changed, 0 unchanged.").wait_for()
    page.reload()
    page.get_by_role("button", name=f"Delete {ATTACK}").click()
    page.get_by_role("button", name=f"Delete {ATTACK}").click()
    expect(page.get_by_role("button", name=f"Delete {ATTACK}")).to_have_count(0)
    unharmed(page)


def answering(answer: Any) -> Callable[[Any], None]:
    def answered(route: Any) -> None:
        route.fulfill(json=answer)

    return answered


def test_nothing_of_a_problem_or_a_verdict_runs(page: Any) -> None:
    record = {"verdict": ATTACK, "scope": ATTACK, "examples": 3}
    task = {
        "id": "x", "kind": "train", "collection": ATTACK, "state": "failed",
        "created": "2026-01-01T00:00:00Z",
        "problem": {"code": "x", "detail": ATTACK}, "result": {"reason": ATTACK},
    }  # fmt: skip
    answers: dict[str, Any] = {
        "**/models": {"live": "v0", "models": [{"version": "v0", "parent": None, "record": record}]},
        "**/tasks": {"tasks": [task], "next": None},
    }
    for url, answer in answers.items():
        page.route(url, answering(answer))
    for view in ("train", "jobs"):
        page.goto(f"/#c=papers&v={view}")
        page.get_by_text(ATTACK).first.wait_for()
        unharmed(page)


# ---- axe, widths, shifts


def after_searching(page: Any) -> None:
    page.locator("#filters summary").click()
    hit = page.locator(".hit:visible").first
    hit.locator(".why summary").click()
    hit.locator(".why table").first.wait_for()
    hit.get_by_role("button", name="This fits").click()
    page.get_by_role("button", name="Keep them").wait_for()


def after_comparing(page: Any) -> None:
    page.locator(".columns section").nth(1).wait_for()


def after_attending(page: Any) -> None:
    page.get_by_label("Query").fill("river stone")
    page.get_by_role("button", name="Attend").click()
    page.locator("#view > div .bars li").first.wait_for()


def after_drawing(page: Any) -> None:
    page.locator(".chart circle").nth(59).wait_for()


def after_opening(page: Any) -> None:
    page.locator("#view details summary").first.click()
    page.locator("#view details pre").first.wait_for()


ACTS: dict[str, Callable[[Any], None]] = {
    "search": after_searching,
    "compare": after_comparing,
    "collection": after_drawing,
    "attend": after_attending,
    "console": after_opening,
}


def violations(page: Any, **options: Any) -> list[Any]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    response = axe.Axe().run(page, options={"resultTypes": ["violations"], **options}).response
    return [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in response["violations"]]


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_and_a_phone_is_wide_enough(browser: Any, server: str, view: str) -> None:
    with page_of_its_own(
        browser, server, viewport={"width": 360, "height": 640}, color_scheme="light", bypass_csp=True
    ) as page:
        settle = Settling(page)
        page.goto(f"/#c={'filed' if view == 'search' else 'papers'}&v={view}&q=river1")
        settle()
        for act in dict.fromkeys((None, ACTS.get(view))):
            if act is not None:
                act(page)
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") == 360
            page.emulate_media(color_scheme="dark")  # changes colours alone
            assert violations(page, runOnly=["color-contrast"]) == []
            page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("topic", ["concepts", "errors"])
def test_axe_finds_nothing_in_guides(browser: Any, server: str, topic: str) -> None:
    with page_of_its_own(browser, server, viewport={"width": 360, "height": 640}, bypass_csp=True) as page:
        page.goto(f"/guide/{topic}")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_moves_under_the_reader(browser: Any, server: str, view: str, width: int) -> None:
    """Cumulative layout shift while a view loads; 0.1 is called good (web.dev/cls)."""
    with page_of_its_own(browser, server, viewport={"width": width, "height": 800}) as page:
        settle = Settling(page)
        page.add_init_script(
            """window.shifts = [];
            new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((one) => ({
              value: one.value, what: one.sources.map((source) => source.node?.id || source.node?.className),
            })))).observe({ type: "layout-shift", buffered: true });"""
        )
        page.goto(f"/#c={'filed' if view == 'search' else 'papers'}&v={view}&q=river1")
        settle()
        shifts = page.evaluate("window.shifts")
        assert sum(one["value"] for one in shifts) < 0.02, shifts


def test_the_first_paint_takes_few_bytes(browser: Any, server: str) -> None:
    with page_of_its_own(browser, server) as page:
        page.goto("/")
        page.get_by_text("documents to ask").wait_for()
        taken = page.evaluate(
            """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
              .reduce((sum, one) => sum + one.transferSize, 0)"""
        )
        assert 10_000 < taken < 100_000


# ---- keys alone


def test_every_view_is_reached_and_used_by_keys(page: Any) -> None:
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    page.get_by_role("link", name="Attend").focus()
    page.keyboard.press("Enter")
    pooling = page.get_by_label("Pooling").first
    pooling.focus()
    before = page.locator(".prediction").inner_text()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".prediction")).not_to_have_text(before)
    page.get_by_role("link", name="Compare").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Query").focus()
    page.keyboard.type("river stone")
    page.keyboard.press("Enter")
    expect(page.locator(".columns section")).to_have_count(2)


# ---- heads, consent


def test_several_heads_are_a_map_and_clicks_are_kept_by_consent_alone(browser: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        collection = made.create("papers")
        collection.ingest(documents(30))
        collection.promote(collection.add_model(Head(collection.store.dimension, heads=3, seed=1), {}))
    with serving(home) as (origin, _), opened_page(browser, origin) as page:
        sent: list[dict[str, Any]] = []
        page.on(
            "request",
            lambda one: sent.extend(one.post_data_json) if one.url.endswith("/feedback") else None,
        )
        page.goto("/#c=papers&q=river+stone")
        heat = page.get_by_role("table", name="What each head attends to, by rank")
        expect(heat.get_by_role("row")).to_have_count(4)  # ranks above, three heads
        assert len(heat.get_by_role("columnheader").all()) == 10
        page.locator(".why summary").first.click()
        parts = page.locator(".why table").first
        assert [row.split("\t")[0] for row in parts.locator("tbody").inner_text().split("\n")] == [
            "head 1",
            "head 2",
            "head 3",
        ]
        page.get_by_role("button", name="This fits").nth(1).click()
        page.get_by_text(re.compile("Keep your judgements on this server, with the query")).wait_for()
        page.get_by_role("button", name="No", exact=True).click()
        page.get_by_text("Not kept.").wait_for()
        assert sent == []  # nobody has agreed yet
        page.get_by_role("button", name="This fits").nth(1).click()
        page.get_by_role("button", name="Keep them").click()
        page.get_by_text("Kept: it fits").wait_for()
        page.get_by_role("button", name="This does not fit").first.click()
        page.get_by_text("Kept: it does not fit").wait_for()
        answer = page.get_by_role("button", name="This is the answer").first
        answer.click()
        page.get_by_text("Kept: the answer").wait_for()
        expect(answer).to_have_attribute("aria-pressed", "true")
        assert [one["action_name"] for one in sent] == ["thumbs_up", "thumbs_down", "answer"]
        assert sent[0]["event_attributes"] == {"position": {"ordinal": 2}}
        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_role("button", name="Keep no further judgements").click()
        page.get_by_role("link", name="Search", exact=True).click()
        page.get_by_role("button", name="This fits").first.click()
        page.get_by_role("button", name="Keep them").wait_for()  # asked again
    with SearchEngine(home, readonly=True, encoder=WordEncoder) as left:
        pages = list(left.collection("papers").feedback.pages())
        assert sorted(event.action for one in pages for event in one.events) == [
            "answer",
            "thumbs_down",
            "thumbs_up",
        ]
