"""Folders of a home: which edition is the collection, and what a deletion leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine, home
from dsearch.engine.home import Home
from dsearch.store.sqlite.schema import FILE_NAME


def test_the_newest_edition_is_that_of_the_largest_number(tmp_path: Path) -> None:
    for name in ("papers", "papers@2", "papers@9", "papers@10", "papers@010", "papers@11"):
        (tmp_path / name).mkdir()
        if not name.endswith("11"):  # which holds no collection
            (tmp_path / name / FILE_NAME).touch()
    opened = Home(tmp_path)
    assert [folder.name for folder in opened.editions("papers")] == [
        "papers",
        "papers@2",
        "papers@9",
        "papers@10",
    ]
    assert opened.existing("papers").name == "papers@10"


def test_a_drop_is_synced_once_the_name_is_gone(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not bring back what was dropped."""
    synced: list[tuple[Path, list[str]]] = []
    sync = home.sync_folder

    def recording(folder: Path) -> None:
        synced.append((folder, engine.names()))
        sync(folder)

    monkeypatch.setattr(home, "sync_folder", recording)
    engine.drop("food")
    assert synced == [(engine.home.path, [])]


def test_what_a_killed_drop_left_goes_at_the_next_opening(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise KeyboardInterrupt
        remove(path, ignore_errors=True)

    with monkeypatch.context() as dying:
        dying.setattr(home.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.drop("food")
    engine.close()
    folder = engine.home.path
    assert [path for path in folder.rglob(FILE_NAME) if path.parent.name.startswith(".")]
    with SearchEngine(folder, encoder=HashingEncoder) as again:
        assert again.names() == []
        assert not list(folder.rglob(FILE_NAME))
