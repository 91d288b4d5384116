"""Chromium, for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.patience import LATEST_S
from support.sizes import by_size

# The same engine without windows, menus and extensions: a page costs a third of the processor time.
SHELLS = ("chromium-headless-shell",)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """The engine alone where it is installed, and the whole browser first for --nightly."""
    names = by_size((*SHELLS, *BROWSERS), (*BROWSERS, *SHELLS))
    return next(filter(None, map(shutil.which, names)), None)


needs_chromium = pytest.mark.skipif(executable() is None, reason="no chromium on this machine")
QUIET_MS = 150
LATEST_MS = 1000 * LATEST_S
# The class of what still waits for an answer; what stands there is that of an earlier question.
BUSY = ".busy"
# Resolves when nothing of the document has changed for so long.
_UNCHANGED = """(quiet) => new Promise((resolve) => {
  let timer;
  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { observer.disconnect(); resolve(); }, quiet);
  };
  const observer = new MutationObserver(again);
  observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  again();
})"""
_SWITCHES = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=LATEST_MS)  # five seconds by default, whatever the page's own timeout
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=executable(), args=_SWITCHES)
        yield launched
        launched.close()


class Settling:
    """Waits until a page has asked for everything, shows every answer, and changes no more.

    A page may neither ask nor change for longer than `QUIET_MS` while it works: on a busy machine between an
    answer and what it shows, and before it repeats a request that a server refused. It says that it is busy.
    """

    def __init__(self, page: Any):
        self._page = page
        self._waiting: set[Any] = set()
        page.on("request", lambda request: self._waiting.add(request))
        for event in ("requestfinished", "requestfailed"):
            page.on(event, lambda request: self._waiting.discard(request))

    def __call__(self) -> None:
        for _ in range(200):
            self._page.evaluate(_UNCHANGED, QUIET_MS)
            busy = self._page.locator(BUSY)
            if busy.count():
                busy.first.wait_for(state="detached")  # the class is gone, or the element
            elif not self._waiting:
                return
        raise AssertionError(f"the page still waits for {[one.url for one in self._waiting]}")


@contextmanager
def page_of_its_own(browser: Any, origin: str, **options: Any) -> Iterator[Any]:
    """A page with options of a browser context; it waits as long as others do, not 30 s."""
    context = browser.new_context(base_url=origin, **options)
    context.set_default_timeout(LATEST_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


@contextmanager
def opened_page(browser: Any, origin: str) -> Iterator[Any]:
    """A page that fails its test when it logs an error, breaks its policy or asks another host."""
    wrong: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            wrong.append(f"{message.text} {message.location['url']}")

    def other_host(request: Any) -> None:
        if not request.url.startswith((origin, "data:")):
            wrong.append(request.url)

    with page_of_its_own(browser, origin, viewport={"width": 1000, "height": 800}) as opened:
        opened.settle = Settling(opened)
        opened.wrong = wrong
        opened.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        opened.on("console", note)
        opened.on("request", other_host)
        yield opened
    assert wrong == [], wrong
