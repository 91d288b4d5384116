"""The page in words where nobody answers: a server that stopped, a server that wants a key, an empty home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.service.browsing import needs_chromium, opened_page
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine
from dsearch.service.keys import ApiKeys

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect
STOPPED = "The server does not answer. Is dsearch serve still running?"


def test_a_stopped_server_is_named_in_every_view(page: Any) -> None:
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    page.route("**/*", lambda route: route.abort())
    page.fill("#query", "music lamp")
    expect(page.locator("#problem")).to_have_text(STOPPED)
    assert page.locator("#problem code").inner_text() == "dsearch serve"
    for name in ("Train", "Collection", "Jobs"):  # their files were not loaded before
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#view .problem")).to_have_text(STOPPED)
    page.wrong.clear()  # each request that was cut off is an error of the console


def test_a_key_is_typed_and_a_journey_goes_on_by_mouse(browser: Any, tmp_path: Path) -> None:
    with SearchEngine(tmp_path, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(20))
    write = ApiKeys(tmp_path).create("me", "admin")[0]
    with serving(tmp_path) as (origin, _), opened_page(browser, origin) as page:
        page.goto("/#c=papers&q=river")
        expect(page.get_by_label("This server asks for an API key")).to_be_focused()
        expect(page.locator("#problem")).to_be_hidden()  # the form says it
        for given in ("ds_00000000_" + "A" * 43, write):
            page.get_by_label("This server asks for an API key").fill(given)
            page.get_by_role("button", name="Unlock").click()
            if given != write:
                expect(page.locator("#problem")).to_contain_text("this API key is not known")
        page.locator(".hit").first.wait_for()
        expect(page.locator("#unlock")).to_be_hidden()
        page.get_by_role("button", name="This is the answer").first.click()
        page.get_by_role("button", name="Keep them").click()
        page.get_by_text("Kept: the answer").wait_for()
        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_text("You judged 1 document for 1 query").wait_for()
        page.get_by_role("link", name="Collection", exact=True).click()
        page.get_by_role("heading", name="Delete it").wait_for()
        page.wrong[:] = [one for one in page.wrong if "401" not in one]


def test_an_empty_home_has_no_choices_yet(page: Any) -> None:
    page.route(
        "**/v1/collections",
        lambda route: route.fulfill(content_type="application/json", body='{"collections": []}'),
    )
    page.goto("/")
    for name in ("Collection", "Model"):
        chosen = page.get_by_label(name, exact=True)
        expect(chosen).to_be_disabled()
        assert chosen.inner_text() == "none yet"


def test_views_of_an_empty_home_say_what_is_missing(page: Any) -> None:
    page.route(
        "**/v1/collections",
        lambda route: route.fulfill(content_type="application/json", body='{"collections": []}'),
    )
    page.goto("/#v=train")
    for name in ("Train", "Compare", "Collection", "Attend"):
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", name=name, exact=True).wait_for()
        page.get_by_text("There is no collection yet. Make one of files, under Search.").wait_for()
    page.get_by_role("link", name="Search", exact=True).click()
    page.get_by_role("heading", name="No collection yet").wait_for()
    assert page.locator("#hint h2").count() == 1


def test_a_search_that_ran_out_of_time_is_asked_again(page: Any) -> None:
    statuses = []

    def late_at_first(route: Any) -> None:
        statuses.append(504 if not statuses else 200)
        if statuses == [504]:
            problem = {"code": "deadline_passed", "detail": "the time for this search is over"}
            route.fulfill(status=504, json=problem)
        else:
            route.continue_()

    page.route("**/v1/collections/papers/search", late_at_first)
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    expect(page.locator("#problem")).to_be_hidden()
    assert statuses[:2] == [504, 200]
    page.wrong[:] = [one for one in page.wrong if "504" not in one]
