"""What the page shows after something else has changed, or of two answers under way; files as records."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from support.service.browsing import needs_chromium

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, needs_chromium]


def asked(page: Any, module: str, expression: str, *values: Any) -> Any:
    """The value of an expression of a module's functions."""
    script = f"async (v) => {{ const m = await import('/ui/{module}.js'); return {expression}; }}"
    return page.evaluate(script, list(values))


def test_filters_come_back_with_the_hits_that_have_them(page: Any) -> None:
    page.goto("/#c=filed&q=river1+stone2")
    panel = page.locator("#filters")
    expect(panel).to_be_visible()
    page.locator("label", has_text="Words").click()
    page.fill("#query", "qwxz")  # no hit, no field
    expect(page.locator(".hit")).to_have_count(0)
    expect(panel).to_be_hidden()
    page.fill("#query", "river1 stone2")
    page.locator(".hit").first.wait_for()
    page.settle()
    expect(panel).to_be_visible()
    page.locator("#collection").select_option("nasty")
    page.settle()
    page.locator("#collection").select_option("filed")
    page.settle()
    expect(panel).to_be_visible()


def test_versions_are_those_that_there_are_now(page: Any) -> None:
    page.goto("/#c=papers")
    page.settle()
    models = page.locator("#model option")
    expect(models).to_have_text(["v0 (live)"])
    trained = page.request.get("/v1/collections/papers/models").json()
    trained["models"].append({**trained["models"][0], "version": "v1", "parent": "v0"})
    page.route("**/papers/models", lambda route: route.fulfill(json={**trained, "live": "v1"}))
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_label("Left").locator("option").first).to_have_text("v1 (live), hybrid")
    page.get_by_role("link", name="Search", exact=True).click()
    expect(models).to_have_text(["v1 (live)", "v0"])


def test_an_address_may_have_another_name_of_a_collection(page: Any) -> None:
    page.request.put("/v1/aliases/today", data={"collection": "papers"})
    page.goto("/#c=today&q=river")
    page.locator(".hit").first.wait_for()
    expect(page.locator("#collection")).to_have_value("papers")
    assert "c=papers" in page.url
    page.request.delete("/v1/aliases/today")


def test_a_task_is_followed_to_its_end_over_streams_that_break(page: Any) -> None:
    task = {"id": "t1", "kind": "refresh", "collection": "papers", "created": "2026-01-01T00:00:00+00:00"}
    states = iter(["running", "done"])
    page.route("**/v1/tasks", lambda route: route.fulfill(json={"tasks": [{**task, "state": "running"}]}))
    page.route("**/v1/tasks/t1", lambda route: route.fulfill(json={**task, "state": next(states)}))
    event = 'event: progress\ndata: {"stage": "keys", "done": 1, "total": 2}\n\n'
    page.route(
        "**/v1/tasks/t1/events", lambda route: route.fulfill(content_type="text/event-stream", body=event)
    )
    page.goto("/#v=jobs")
    expect(page.locator(".job")).to_contain_text("refresh · papers · done")


def test_of_two_maps_the_later_is_drawn(page: Any) -> None:
    page.goto("/#c=papers&v=collection")
    page.locator(".chart circle").first.wait_for()
    held: list[Any] = []
    page.route("**/attend", lambda route: held.append(route))
    words = page.get_by_placeholder("Colour by the attention of a query")
    for query in ("river", "stone"):
        words.fill(query)
        page.get_by_role("button", name="Draw").click()
    while len(held) < 2:
        page.wait_for_timeout(10)
    for route in reversed(held):
        route.continue_()
    page.unroute("**/attend")
    page.settle()
    assert page.locator(".chart figcaption").all_inner_texts() == ["60 documents nearest to “stone”"]


def test_a_download_that_failed_can_be_tried_again(page: Any) -> None:
    page.goto("/#c=papers&v=collection")
    start = page.get_by_role("button", name="Download as JSON lines")
    start.wait_for()
    page.settle()
    problem = {"detail": "the disk is gone", "code": "unavailable"}
    page.route(
        "**/documents?limit=200",
        lambda route: route.fulfill(status=500, content_type="application/problem+json", json=problem),
    )
    start.click()
    page.get_by_text("the disk is gone").wait_for()
    expect(start).to_be_enabled()
    page.wrong.clear()  # what the browser says of the 500


def test_the_models_of_a_collection_that_was_left_are_not_offered(page: Any) -> None:
    page.goto("/#c=papers&q=river")
    page.settle()
    held: list[Any] = []
    page.route("**/filed/models", lambda route: held.append(route))
    page.locator("#collection").select_option("filed")
    while not held:
        page.wait_for_timeout(10)
    page.locator("#collection").select_option("papers")
    page.locator(".hit").first.wait_for()
    held[0].fulfill(json={"live": "v7", "models": [], "predict": None})
    page.settle()
    expect(page.locator("#model option")).to_have_text(["v0 (live)"])


def test_what_the_console_gives_is_typed_as_it_stands(page: Any) -> None:
    page.goto("/#v=console")
    url = "/v1/collections/papers/documents/it's%20mine"
    curl = asked(page, "console", "m.asCurl(v[0])", {"method": "DELETE", "url": url, "body": '{"a":"b\'c"}'})
    words = shlex.split(curl.replace("\\\n", ""))
    assert words[:4] == ["curl", "-s", "-X", "DELETE"]
    assert words[4].endswith(url)
    assert words[-1] == '{"a":"b\'c"}'
    sent = {
        "method": "POST",
        "url": "/v1/collections/papers/files",
        "body": "",
        "files": ["it's.md", 'a"b.txt'],
    }
    words = shlex.split(asked(page, "console", "m.asCurl(v[0])", sent).replace("\\\n", ""))
    assert words[-4:] == ["-F", 'file=@"it\'s.md"', "-F", 'file=@"a\\"b.txt"']
    python = asked(page, "console", "m.asPython(v[0])", sent)
    assert """for name in ["it's.md", "a\\"b.txt"]]""" in python
    compile(python, "console", "exec")


def test_marks_count_letters_as_the_server_does(page: Any) -> None:
    """Positions of highlights are of code points; JavaScript has two units for a picture."""
    page.goto("/#v=console")
    text, spans = "🦊🦊 a river 🦊 bank ", [[5, 10], [13, 17]]
    fragment = {"field": "text", "text": text, "spans": spans, "start": 0, "by": "words"}
    hit = {"id": "d", "title": "T", "text": text + "and so on " * 60, "metadata": {}}
    hit |= {"weight": 0.5, "score": 1.0, "rank": 1, "highlights": [fragment]}
    marked = "[...m.hitElement(v[0], 'river').querySelectorAll('.text mark')].map((one) => one.textContent)"
    assert asked(page, "hits", marked, hit) == ["river", "bank"]


def test_lines_of_judgements_are_those_of_the_file(page: Any) -> None:
    page.goto("/#v=console")

    def judged(name: str, text: str) -> Any:
        return asked(page, "judgements", "m.judgementsOf([new File([v[1]], v[0])])", name, text)

    for name, text, line in (
        ("a.jsonl", '{"query": "q", "document": "d"}\n\n{', 3),
        ("a.csv", "query,document\n\nq,d\n\nq", 5),
    ):
        with pytest.raises(Exception, match=re.escape(f"{name}, line {line}:")):
            judged(name, text)
    graded = judged("a.jsonl", '{"query": "q", "document": "d", "grade": 0}\n{"query": "q", "document": "e"}')
    assert graded["judgements"] == {"q": {"d": 0, "e": 1}}  # 0 is a grade, none is 1
    assert judged("JUDGED.CSV", "query,document\nq,d\nq,e,0")["judgements"] == {"q": {"d": 1, "e": 0}}
