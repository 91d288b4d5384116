"""The page in a real browser: Chromium, when there is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.service.browsing import needs_chromium, page_of_its_own

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]


def test_search_as_you_type(page: Any) -> None:
    page.goto("/#c=papers")
    page.get_by_text("60 documents to ask").wait_for()
    page.keyboard.type("river stone")
    page.locator(".hit").nth(9).wait_for()
    shares = page.locator(".share").all_inner_texts()
    assert len(shares) == 10
    assert all("%" in share for share in shares)
    widths = page.locator(".bar").evaluate_all(
        "bars => bars.map(bar => getComputedStyle(bar, '::before').width).map(parseFloat)"
    )
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 10
    said = page.locator("#status").inner_text()
    assert re.search(
        r"10 hits with \d+ % of the attention; .+\. 60 documents were scored\.",
        said,
    )
    assert not re.search("Confident|Torn", said)  # a share of attention is no confidence
    assert re.search(
        r"generation \d+ · model v0 · sequence \d+ · [\d.]+ ms", page.locator("#stamp").inner_text()
    )
    assert page.locator("mark").count() > 0
    assert "q=river+stone" in page.url


def test_modes_and_collections_change_the_answer_and_stay_in_the_address(page: Any) -> None:
    page.goto("/#c=papers&q=cat+dog")
    page.locator(".hit").first.wait_for()
    hybrid = page.locator(".parts").first.inner_text()
    assert "meaning" in hybrid
    assert "words" in hybrid
    page.get_by_label("Words").check()
    playwright.expect(page.locator(".parts").first).not_to_have_text(hybrid)
    assert "mode=keyword" in page.url
    page.reload()
    page.locator(".hit").first.wait_for()
    assert page.locator("input[value=keyword]").is_checked()
    page.select_option("#collection", "nasty")
    playwright.expect(page.locator(".hit")).to_have_count(3)
    assert "c=nasty" in page.url


def test_nothing_that_a_document_says_is_run(page: Any) -> None:
    attack = "cat <img src=x onerror='window.attacked=true'><script>window.attacked=true</script>"
    page.goto("/#c=nasty")
    page.fill("#query", attack)
    playwright.expect(page.locator(".hit")).to_have_count(3)
    for more in page.locator(".more").all():
        more.click()
    assert page.evaluate("window.attacked") is None
    assert page.locator("main img, main script, main b").count() == 0
    shown = page.locator("#hits").inner_text()
    for text in ("<script>window.attacked = true</script>", "<img src=x onerror=", "&lt;b&gt;"):
        assert text in shown


def test_a_problem_shows_its_detail(page: Any, server: str) -> None:
    page.route(
        "**/search",
        lambda route: route.fulfill(
            status=503,
            content_type="application/problem+json",
            body='{"detail": "<b>256</b> requests wait", "code": "unavailable"}',
        ),
    )
    page.goto("/#c=papers&q=cat")
    page.locator("#problem").wait_for()
    assert page.locator("#problem").inner_text() == "<b>256</b> requests wait"
    page.unroute("**/search")
    page.fill("#query", "cat dog")
    page.locator(".hit").first.wait_for()
    assert page.locator("#problem").is_hidden()
    page.wrong.remove(next(one for one in page.wrong if "503" in one))


def test_a_late_answer_does_not_replace_a_newer_one(page: Any) -> None:
    late: list[Any] = []
    page.route("**/search", lambda route: late.append(route) if not late else route.continue_())
    with page.expect_request("**/search"):
        page.goto("/#c=papers&q=river")
    page.fill("#query", "music")
    page.locator(".hit").first.wait_for()
    newer = page.locator("#hits").inner_text()
    late[0].continue_()
    page.settle()
    assert page.locator("#hits").inner_text() == newer


@pytest.mark.parametrize(
    ("collection", "change"),
    [
        ("papers", lambda page: page.goto("/#c=papers&q=music")),
        ("nasty", lambda page: page.select_option("#collection", "nasty")),
    ],
    ids=["query", "collection"],
)
def test_an_answer_to_what_is_not_asked_any_more_is_not_shown(
    page: Any, collection: str, change: Callable[[Any], None]
) -> None:
    """Whether it comes before the next question could be asked; until that is answered the page is busy."""
    page.goto("/#c=papers&q=cat")
    page.settle()
    held: list[Any] = []
    page.route(re.compile("/search$"), lambda route: held.append(route))
    with page.expect_request("**/search"):
        page.goto("/#c=papers&q=river")
    described = re.compile(f"/v1/collections/{collection}$")  # is asked for before the next question
    page.route(described, lambda route: held.append(route))
    with (
        page.expect_request(described),
        page.expect_event("requestfailed", lambda request: request.url.endswith("/search")),
    ):
        change(page)
    assert page.locator("body.busy").count() == 1
    page.unroute(re.compile("/search$"))
    held.pop().continue_()
    page.settle()
    asked = page.request.post(
        f"/v1/collections/{collection}/search", data={"query": page.locator("#query").input_value()}
    )
    assert page.locator("#hits .hit, #less .hit").count() == len(asked.json()["hits"])
    assert page.locator("#collection").input_value() == collection


def test_a_comparison_shows_the_answers_to_the_latest_query(page: Any) -> None:
    page.goto("/#c=papers&v=compare&q=cat")
    page.settle()
    held: list[Any] = []
    page.route("**/search", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    asked = page.get_by_label("Query")
    for query in ("river", "music"):
        asked.fill(query)
        with page.expect_response("**/search") if query == "music" else page.expect_request("**/search"):
            page.get_by_role("button", name="Compare").click()
    page.locator(".columns:not(.busy)").wait_for()
    shown = page.locator(".columns").inner_text()
    for late in held:
        with page.expect_response("**/search"):
            late.continue_()
    page.settle()
    assert page.locator(".columns").inner_text() == shown


def test_an_address_may_change_before_it_is_known_what_there_is(page: Any) -> None:
    """Nothing is asked of a collection without a name."""
    held: list[Any] = []
    page.route(re.compile("/v1/collections$"), lambda route: held.append(route))
    with page.expect_request(re.compile("/v1/collections$")):
        page.goto("/#c=papers&q=river")
    page.goto("/#c=nasty&q=cat")
    held[0].continue_()
    page.settle()
    playwright.expect(page.locator(".hit")).to_have_count(3)
    assert page.locator("#collection").input_value() == "nasty"


def test_a_page_has_settled_when_it_shows_what_it_was_asked(page: Any) -> None:
    """Though nothing changes and nothing is asked for, while an answer has come and is not shown."""
    page.add_init_script(
        """const ask = window.fetch;
        window.fetch = async (...all) => {
          const answer = await ask(...all), content = await answer.blob();
          await new Promise((resolve) => setTimeout(resolve, 1000));
          return new Response(content, answer);
        };"""
    )
    page.goto("/#c=papers&q=river")
    page.settle()
    page.locator(".hit").first.wait_for()
    page.goto("/#c=papers&q=music")
    page.settle()
    shown = page.locator(".hit").first.inner_text()
    found = page.request.post("/v1/collections/papers/search", data={"query": "music", "limit": 1}).json()
    assert found["hits"][0]["id"] in shown


def test_the_keyboard_is_enough(page: Any) -> None:
    page.goto("/#c=papers&q=cat")
    page.locator(".hit").nth(1).wait_for()
    page.locator("#query").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("[...document.querySelectorAll('.hit')].indexOf(document.activeElement)") == 1
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    playwright.expect(page).to_have_url(re.compile("mode=dense"))
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_small_phone(browser: Any, server: str, scheme: str) -> None:
    with page_of_its_own(
        browser, server, viewport={"width": 360, "height": 640}, color_scheme=scheme
    ) as page:
        page.goto("/#c=nasty&q=cat")
        page.locator(".hit").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")


def test_the_description_of_the_api_needs_no_other_host(page: Any) -> None:
    page.goto("/docs")
    page.get_by_text("/v1/collections/{collection}/attend").wait_for()
    page.locator("#operations-search-search").get_by_role("button").first.click()
    page.get_by_text("Execute").wait_for()


def test_without_a_collection_it_says_how_to_make_one(page: Any) -> None:
    page.route(
        "**/v1/collections",
        lambda route: route.fulfill(content_type="application/json", body='{"collections": []}'),
    )
    page.goto("/")
    page.get_by_text("No collection yet").wait_for()
    assert page.locator("#hint code").inner_text() == "dsearch index FOLDER -c notes"


def test_a_request_that_a_busy_server_refuses_is_repeated(page: Any) -> None:
    refused: list[str] = []

    def refuse_first(route: Any) -> None:
        url = route.request.url
        if refused.count(url) > 1:
            route.continue_()
            return
        refused.append(url)
        body = '{"detail": "the server is overloaded", "code": "overloaded"}'
        headers = {"Retry-After": "0.1"}
        route.fulfill(status=503, content_type="application/problem+json", body=body, headers=headers)

    page.add_init_script("""globalThis.waits = [];
        const later = setTimeout;
        globalThis.setTimeout = (act, ms) => { waits.push(ms); return later(act, ms); };""")
    page.route("**/v1/collections", refuse_first)
    page.route("**/search", refuse_first)
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    assert len(refused) == 4
    assert page.evaluate("waits.filter((ms) => ms === 100).length") == 4  # 0.1 s, as it was told
    playwright.expect(page.locator("#problem")).to_be_hidden()
    page.wrong.clear()  # each refusal is an error of the console


def test_words_are_marked_that_counted_and_no_others(page: Any) -> None:
    page.route(
        "**/search",
        lambda route: route.fulfill(
            content_type="application/json",
            body="""{"query_id": "q", "generation": 1, "model": "v0", "sequence": 1, "took_ms": 1,
                "attention": {"candidates": 1, "entropy": 0, "covered_mass": 0.91},
                "hits": [{"rank": 1, "id": "a", "weight": 1, "score": 1, "title": "the river", "metadata": {},
                  "text": "the boats on the rivers", "highlights": [{"field": "text", "start": 0,
                  "text": "the boats on the rivers", "spans": [[17, 23]], "by": "words"}],
                  "explain": {"dense": [1], "keyword": [0],
                  "head_weights": [1], "terms": {"river": [0.1]}}}]}""",
        ),
    )
    page.goto("/#c=papers&q=the+river")
    page.locator(".hit").first.wait_for()
    assert page.locator("mark").all_inner_texts() == ["river", "rivers"]
    assert page.locator("#status").inner_text() == (
        "1 hit with 100 % of the attention; one document has most of it. 1 document was scored; "
        "others have 9.0 % of the collection's attention."
    )
