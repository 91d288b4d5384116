"""The page, without a browser: what it loads, and that nothing of it breaks its own policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from starlette.testclient import TestClient

from dsearch.service.routes.pages import UI


def _sources() -> Iterator[tuple[str, str]]:
    for path in sorted(UI.iterdir()):
        yield path.name, path.read_text()


def test_the_pages_and_everything_they_load_are_served(client: TestClient) -> None:
    for page in ("/", "/docs", "/guide", "/guide/concepts"):
        answered = client.get(page)
        assert answered.status_code == 200
        assert answered.headers["content-type"] == "text/html; charset=utf-8"
        loaded = re.findall(r'(?:src|href)="([^"#]+)"', answered.text)
        assert len(loaded) >= 3
        for url in loaded:
            assert url.startswith("/"), url
            assert client.get(url).status_code == 200, url
    for name, text in _sources():
        for module in re.findall(r'from "\./([^"]+)"', text):
            answered = client.get(f"/ui/{module}")
            assert answered.status_code == 200, (name, module)
            assert "javascript" in answered.headers["content-type"]


@pytest.mark.parametrize(("name", "text"), list(_sources()), ids=[name for name, _ in _sources()])
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(name: str, text: str) -> None:
    namespaces = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?:https?:)?//[\w.-]+\.\w+/", re.sub(r"^\s*//.*$", "", namespaces, flags=re.M))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", text)


def test_a_guide_is_rendered_and_a_missing_one_names_the_others(client: TestClient) -> None:
    page = client.get("/guide/concepts").text
    assert "<h1>Search is attention</h1>" in page
    assert '<table tabindex="0">' in page
    assert "<script" not in page
    pictures = re.findall(r'<img src="([^"]+)" alt="[^"]+', page)
    assert len(pictures) >= 2
    for url in pictures:
        assert client.get(url).headers["content-type"] == "image/png"
    for path in ("/guide/none.png", "/guide/..%2Fservice%2Fui%2Ficon.png"):
        assert client.get(path).json()["code"] == "not_found"
    missing = client.get("/guide/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert "concepts" in missing.json()["detail"]


def test_what_is_seen_first_is_small() -> None:
    """What the page loads before it can be used, uncompressed; each view comes when it is asked for."""
    loaded, found = set[str](), {"index.html"}
    while found:
        name = found.pop()
        loaded.add(name)
        text = (UI / name).read_text()
        found |= {
            *re.findall(r'from "\./([^"]+)"', text),
            *re.findall(r'(?:src|href)="/ui/([^"]+)"', text),
        } - loaded
    assert {"app.js", "search.js", "style.css"} <= loaded
    assert not {"train.js", "collection.js"} & loaded
    assert sum((UI / name).stat().st_size for name in loaded) < 60_000


def test_a_file_is_asked_about_again_each_time(client: TestClient) -> None:
    first = client.get("/ui/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/ui/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304


# ---- contrast: WCAG 2.2, 1.4.3 (4.5 : 1)

GROUNDS = {
    "text": ("ground", "raised", "line"),
    "quiet": ("ground", "raised"),
    "accent": ("ground", "raised"),
    "wrong": ("wrong-ground",),
    "mark-text": ("mark",),
}


def _schemes() -> list[dict[str, str]]:
    css = (UI / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.S)
    schemes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme)) for scheme in (light, dark)]
    for one, other in pairwise(schemes):
        assert one.keys() == other.keys()
    return schemes


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast(scheme: int) -> None:
    colours = _schemes()[scheme]
    for text, grounds in GROUNDS.items():
        for ground in grounds:
            brighter, darker = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)
