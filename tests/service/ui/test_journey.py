"""The first hour by mouse: an empty home, files, thirty judgements, a training, its verdict, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.service.browsing import needs_chromium, opened_page
from support.service.service_fakes import WordEncoder, serving

from dsearch.engine import SearchEngine

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect
FILES, TOPICS, WORDINGS = 10, 2, 15  # so many wordings that each fold has some of each topic


@pytest.fixture(scope="module")
def nothing_yet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("journey") / "home"
    with SearchEngine(home, encoder=WordEncoder):
        pass
    with serving(home) as (origin, _):
        yield origin


def test_from_an_empty_home_to_a_live_version_and_back(
    browser: Any, nothing_yet: str, tmp_path: Path
) -> None:
    # No question shares a word with its answer: only judgements tell which belong together.
    files = [tmp_path / f"topic{n}.txt" for n in range(FILES)]
    for n, file in enumerate(files):
        file.write_text(f"alpha{n} beta{n} gamma{n % 3} delta{n * 7 % 5}")
    with opened_page(browser, nothing_yet) as page:
        page.goto("/")
        page.get_by_label("Name of the collection").fill("topics")
        page.get_by_label("Files to add").set_input_files(files)
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_text(f"{FILES} documents to ask").wait_for()

        for number in range(TOPICS * WORDINGS):
            topic, wording = divmod(number, WORDINGS)
            query = f"question{topic} about{topic} wording{wording}"
            with page.expect_response("**/search"):
                page.fill("#query", query)
            hit = page.locator(".hit", has=page.get_by_text(f"topic{topic}.txt", exact=True))
            hit.get_by_role("button", name="This is the answer").click()
            if number == 0:  # on the spot, once
                page.get_by_role("button", name="Keep them").click()
            hit.get_by_text("Kept: the answer").wait_for()

        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_text(re.compile("You judged 30 documents for 30 queries")).wait_for()
        page.get_by_text(re.compile("About 70 further queries until a training can be told")).wait_for()
        page.set_viewport_size({"width": 390, "height": 800})
        names = ("Train on your judgements", "Train on everybody’s clicks, checked by yours")
        first, second = (page.get_by_role("button", name=name).bounding_box() for name in names)
        assert second["y"] - first["y"] - first["height"] >= 6  # one under the other, apart
        page.set_viewport_size({"width": 1000, "height": 800})
        page.get_by_role("button", name="Train on your judgements").click()
        verdict = page.locator(".verdict strong")
        verdict.wait_for()
        assert re.fullmatch(
            r"The (new version|tuned search)( with a memory of past queries)? answers \d+ of 30 queries "
            r"better and \d+ worse \(nDCG@10 \.\d+ → \S+, change \S+ to \S+ at 95 %\): it is live\.",
            verdict.inner_text(),
        )
        charts = page.locator(".charts").bounding_box()
        assert page.locator(".verdict").bounding_box()["y"] < charts["y"]  # first what came of it
        # What is compared is said, and parts without a query are not shown.
        of_another = verdict.inner_text().startswith("The tuned search")
        expect(page.get_by_text("What was trained, against the tuned search:")).to_have_count(int(of_another))
        expect(page.get_by_text(": 0 held-out queries,")).to_have_count(0)
        live = page.locator("li[aria-label$='answers now']").get_attribute("aria-label")
        assert live is not None
        assert not live.startswith("v0")

        page.get_by_role("button", name="Undo").click()
        page.get_by_text("Undone: the version before answers again.").wait_for()
        expect(page.get_by_role("listitem", name="v0, answers now")).to_be_visible()
