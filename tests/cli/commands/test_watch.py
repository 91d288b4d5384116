"""`dsearch watch`, in a thread of this process, on a real folder."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from support.cli.terminal import Terminal
from support.patience import LATEST_S

from dsearch.cli.services import watch as commands

watchfiles = pytest.importorskip("watchfiles")


def test_changes_are_indexed_until_it_ends(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("river")
    monkeypatch.setattr(commands, "WAIT_MS", 50)
    monkeypatch.setattr(commands, "STARTED_MS", 50)
    stop = threading.Event()
    monkeypatch.setattr(watchfiles, "watch", partial(watchfiles.watch, stop_event=stop, step=10))
    home = tmp_path / "home"
    watching = threading.Thread(target=commands.watch, args=(folder,), kwargs={"home": home, "yes": True})
    watching.start()

    def shown() -> list[str]:
        code, out, _ = dsearch("search", "river meadow", "--mode", "keyword", "--json")
        if code != 0 or "\n{" not in "\n" + out:
            return []
        answer = out[out.index("{") :]  # the thread that watches prints a line before it
        hits, _ = json.JSONDecoder().raw_decode(answer)
        return sorted(hit["id"] for hit in hits["hits"])

    def becomes(ids: list[str]) -> bool:
        until = time.monotonic() + LATEST_S
        while time.monotonic() < until:
            if shown() == ids:
                return True
            time.sleep(0.05)
        return False

    try:
        assert becomes(["a.md"])
        (folder / "b.md").write_text("meadow")
        assert becomes(["a.md", "b.md"])
        (folder / "a.md").unlink()
        assert becomes(["b.md"])
    finally:
        stop.set()
        watching.join(LATEST_S)
    assert not watching.is_alive()


def test_what_indexing_writes_is_no_change(tmp_path: Path) -> None:
    is_source = commands.outside(tmp_path / "notes" / "index")
    assert is_source(str(tmp_path / "notes" / "a.md"))
    assert is_source(str(tmp_path / "notes" / ".gitignore"))
    assert not is_source(str(tmp_path / "notes" / ".a.md.swp"))
    assert not is_source(str(tmp_path / "notes" / "index" / "default" / "documents.db"))


def test_a_file_is_not_watched(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("river")
    code, _, err = dsearch("watch", tmp_path / "a.md")
    assert (code, "not a folder; watch one" in err) == (1, True)
