"""The guides on the server: rendered without scripts, and searched by words that cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from dsearch.guide import guides
from dsearch.guide.search import Section
from dsearch.service.routes import pages as guide


@pytest.fixture(scope="module")
def pages() -> Iterator[TestClient]:
    app = FastAPI()
    guide.install(app)
    with TestClient(app) as client:
        yield client


def test_the_first_guide_is_shown_and_marked_in_the_list(pages: TestClient) -> None:
    first, second, *_ = guides()
    for path, entry in (("/guide", first), (f"/guide/{second.topic}", second)):
        answer = pages.get(path)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-cache"
        assert "form-action 'self'" in answer.headers["content-security-policy"]
        assert f"<title>{escape(entry.title)} · dsearch</title>" in answer.text
        assert re.findall(r'href="/guide/([a-z-]+)" aria-current=page', answer.text) == [entry.topic]
        assert answer.text.count('<li><a href="/guide/') >= len(guides())


def test_headings_have_anchors_and_wide_parts_scroll(pages: TestClient) -> None:
    texts = [pages.get(f"/guide/{entry.topic}").text for entry in guides()]
    assert all(re.search(r'<h2 id="[a-z0-9-]+">', text) for text in texts)
    assert not any(re.search(r"<h[23]>|<pre>|<table>", text) for text in texts)
    assert any('<img src="/guide/' in text for text in texts)


def test_pictures_are_served_and_missing_things_are_problems(pages: TestClient) -> None:
    name = next(
        found[1]
        for entry in guides()
        if (found := re.search(r'<img src="(/guide/[^"]+)"', pages.get(f"/guide/{entry.topic}").text))
    )
    picture = pages.get(name)
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")
    assert picture.headers["cache-control"] == "no-cache"
    for path in ("/guide/nothing.png", "/guide/nothing"):
        missing = pages.get(path)
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_sections_are_found_by_their_words(pages: TestClient) -> None:
    answer = pages.get("/guide", params={"q": " overload "})
    results = re.findall(r'<li><a href="/guide/[a-z-]+#[a-z0-9-]+">', answer.text)
    assert 1 <= len(results) <= guide.RESULTS == 10
    assert "<title>Guides: overload · dsearch</title>" in answer.text
    assert 'name="q" value="overload"' in answer.text
    assert "aria-current" not in answer.text
    assert "No guide has these words" in pages.get("/guide", params={"q": "xyzzyx"}).text
    assert "aria-current" in pages.get("/guide", params={"q": "  "}).text


def test_words_never_become_markup(pages: TestClient) -> None:
    """They stand in the title, in a heading and in an attribute, whose quotation mark they may not end."""
    answer = pages.get("/guide", params={"q": "<b> \" onfocus='x' &amp;"}).text
    assert "&lt;b&gt; &quot; onfocus=&#x27;x&#x27; &amp;amp;" in answer
    assert "<b>" not in answer
    assert '" onfocus' not in answer


def test_more_words_than_the_form_takes_are_cut(pages: TestClient) -> None:
    answer = pages.get("/guide", params={"q": "a" * 300}).text
    assert re.search(r'value="(a+)"', answer)[1] == "a" * 200  # type: ignore[index]


def test_what_a_section_says_never_becomes_markup(pages: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    section = Section("config", "<i>One</i>", "x <b>bold</b>")
    monkeypatch.setattr(guide, "search_guides", lambda query, limit: [section])
    answer = pages.get("/guide", params={"q": "one"}).text
    assert "&lt;i&gt;One&lt;/i&gt;" in answer
    assert "x &lt;b&gt;bold&lt;/b&gt;" in answer


def test_a_section_with_signs_is_where_its_result_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guide, "guide", lambda topic: '# T\n\n## A & "B" `c`\n\ntext\n')
    app = FastAPI()
    guide.install(app)
    with TestClient(app) as pages:
        answer = pages.get("/guide").text
    anchor = Section("t", 'A & "B" c', "").anchor
    assert f'<h2 id="{anchor}">' in answer
