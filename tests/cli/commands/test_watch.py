"""`dsearch watch`, in a thread of this process, on a real folder."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli.terminal import Terminal
from support.patience import LATEST_S

from dsearch.cli.commands import watch as commands

watchfiles = pytest.importorskip("watchfiles")


@pytest.fixture
def watched(dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A folder with one file, which a thread of this process watches."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("river")
    monkeypatch.setattr(commands, "WAIT_MS", 50)
    monkeypatch.setattr(commands, "STARTED_MS", 50)
    stop, told = threading.Event(), list[str]()
    monkeypatch.setattr(watchfiles, "watch", partial(watchfiles.watch, stop_event=stop, step=10))
    monkeypatch.setattr(commands, "say", told.append)
    home = tmp_path / "home"
    watching = threading.Thread(
        target=commands.watch, args=(folder,), kwargs={"home": home, "yes": True}, daemon=True
    )
    watching.start()
    yield Watched(folder, told, dsearch)
    stop.set()
    watching.join(LATEST_S)
    assert not watching.is_alive()


@dataclass
class Watched:
    """A folder, what was said about it, and how to search it."""

    folder: Path
    told: list[str]
    dsearch: Terminal

    def shown(self) -> list[str]:
        code, out, _ = self.dsearch("search", "river meadow", "--mode", "keyword", "--json")
        if code != 0 or "\n{" not in "\n" + out:
            return []
        answer = out[out.index("{") :]  # the thread that watches prints a line before it
        hits, _ = json.JSONDecoder().raw_decode(answer)
        return sorted(hit["id"] for hit in hits["hits"])

    def becomes(self, ids: list[str]) -> bool:
        return comes(lambda: self.shown() == ids)


def comes(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + LATEST_S
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.05)
    return False


def test_changes_are_indexed_until_it_ends(watched: Watched) -> None:
    assert watched.becomes(["a.md"])
    (watched.folder / "b.md").write_text("meadow")
    assert watched.becomes(["a.md", "b.md"])
    (watched.folder / "a.md").unlink()
    assert watched.becomes(["b.md"])
    assert watched.told.count(f"watching {watched.folder}; end it with Ctrl-C") == 1


def test_a_folder_that_is_removed_and_made_again_is_watched_on(watched: Watched) -> None:
    assert watched.becomes(["a.md"])
    shutil.rmtree(watched.folder)
    gone = f"{watched.folder} is gone: its documents stay; it is indexed when it is back; end it with Ctrl-C"
    assert comes(lambda: gone in watched.told)
    assert watched.shown() == ["a.md"]
    watched.folder.mkdir()
    (watched.folder / "b.md").write_text("meadow")
    assert watched.becomes(["b.md"])  # found as it begins again
    (watched.folder / "c.md").write_text("meadow")
    assert watched.becomes(["b.md", "c.md"])  # and it watches again
    assert watched.told.count(gone) == 1


def test_a_folder_that_took_the_place_of_another_is_watched_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells of it but another file in the folder of that name."""
    folder = tmp_path / "notes"
    folder.mkdir()
    watches: list[str] = []
    updates: list[int] = []

    def watch(*_: Any, **__: Any) -> Iterator[set[tuple[str, str]]]:
        watches.append("")
        yield set()
        if len(watches) == 1:
            folder.rename(tmp_path / "before")
            folder.mkdir()
            yield {("added", str(folder / "b.md"))}
            watches.append("the one that is gone is watched on")
            yield set()

    fake = SimpleNamespace(watch=watch, Change=SimpleNamespace(deleted="deleted"))
    monkeypatch.setattr("dsearch.corpus.formats.lines.optional", lambda *_, **__: fake)
    monkeypatch.setattr(commands, "index", lambda *_, **__: updates.append(1))
    commands.watch(folder, home=tmp_path / "home")
    assert watches == ["", ""]
    assert len(updates) == 2  # at the beginning of each


def test_what_indexing_writes_is_no_change(tmp_path: Path) -> None:
    is_source = commands.outside(tmp_path / "notes" / "index")
    assert is_source(str(tmp_path / "notes" / "a.md"))
    assert is_source(str(tmp_path / "notes" / ".gitignore"))
    assert is_source(str(tmp_path / "notes" / "index-of-names" / "a.md"))
    assert not is_source(str(tmp_path / "notes" / ".a.md.swp"))
    assert not is_source(str(tmp_path / "notes" / "index" / "default" / "documents.db"))


def test_a_file_is_not_watched(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("river")
    code, _, err = dsearch("watch", tmp_path / "a.md")
    assert (code, "not a folder; watch one" in err) == (1, True)
