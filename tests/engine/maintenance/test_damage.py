"""Flipped bits and cut ends in every kind of file: named, refused, or without any effect.

The trials are in damage_trials.py; scripts/trials/soak_store.py runs them by the thousand.
"""

from __future__ import annotations

import logging
import shutil

import pytest
from support.engine.damage_trials import damages, documents, encoder
from support.fakes import HashingEncoder
from support.index import rewrite_manifest
from support.sizes import by_size

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import CollectionExists, CorruptData
from dsearch.store import Event, Impression


def test_damage_to_any_file_is_named_or_changes_nothing(tmp_path):
    trials = by_size(130, 1500)
    seen = damages(tmp_path, trials)
    assert seen["kinds of files"] >= 15
    assert seen["found by verify"] + seen["refused"] >= trials * 0.6


def test_lost_clicks_are_said_on_opening_and_by_verify_and_hinder_no_search(tmp_path, caplog):
    home = tmp_path / "home"
    with SearchEngine(home, encoder=encoder) as engine:
        papers = engine.create("papers")
        papers.ingest(documents(range(6), "old"))
        for n in range(2):
            if n:
                shutil.copytree(home / "papers", tmp_path / "before")
            click = Event(f"e{n}", "q1", "key", "", "click", "d2", 1, 0.0, 2.0)
            papers.feedback.record([Impression("q1", "apple", 1.0)], [click])
    (home / "papers" / "feedback.db").unlink()
    for file in (tmp_path / "before").glob("feedback.db*"):
        shutil.copy(file, home / "papers")
    with caplog.at_level(logging.WARNING), SearchEngine(home, encoder=encoder) as engine:
        papers = engine.collection("papers")
        assert "acknowledged clicks and judgements are missing" in caplog.text
        assert len(papers.search("every apple").hits) == 6
        report = engine.verify("papers")
        assert [finding for finding in report.damage if "clicks and judgements are missing" in finding]
        engine.backup("papers", tmp_path / "copy")  # documents are copied, and what is known of the loss
        papers.feedback.clear(damaged=True)
        assert engine.verify("papers").ok
        engine.drop("papers")
        restored = engine.restore(tmp_path / "copy")
        assert "clicks and judgements are missing" in (restored.feedback.loss() or "")
        assert [finding for finding in engine.verify("papers").damage if "clicks" in finding]


def test_a_collection_whose_database_is_gone_is_damaged_and_not_unknown(tmp_path):
    home = tmp_path / "home"
    with SearchEngine(home, encoder=encoder) as engine:
        engine.create("papers").ingest(documents(range(6), "old"))
        engine.create("others")
    for file in (home / "papers").glob("documents.db*"):
        file.unlink()
    with SearchEngine(home, encoder=encoder) as engine:
        assert engine.names() == ["others", "papers"]
        (damage,) = engine.verify("papers").damage
        assert "documents.db is missing, and its watermark is there: all documents are lost" in damage
        with pytest.raises(CorruptData, match=r"documents\.db is missing"):
            engine.collection("papers")
        with pytest.raises(CollectionExists):
            engine.create("papers")
        assert engine.verify("others").ok
        engine.drop("papers")
        assert engine.names() == ["others"]


@pytest.mark.parametrize("live", [True, False])
def test_a_lost_generation_that_was_built_again_is_no_damage_any_more(tmp_path, live):
    home = tmp_path / "home"
    with SearchEngine(home, encoder=encoder) as engine:
        papers = engine.create("papers")
        papers.ingest(documents(range(6), "old"))
        papers.refresh()
    folders = sorted((home / "papers" / "generations").iterdir())
    shutil.rmtree(folders[-1 if live else 0])
    with SearchEngine(home, encoder=encoder) as engine:
        (damage,) = engine.verify("papers").damage
        assert "build the generation again with: dsearch refresh -c papers" in damage
        papers = engine.collection("papers")
        papers.refresh()
        assert engine.verify("papers").ok
        assert papers.search("apple", limit=3).hits


@pytest.mark.parametrize("damage", ["keys", "format"])
def test_a_refresh_strikes_the_damaged_generation_from_the_register(
    engine: SearchEngine, collection: Collection, damage: str
) -> None:
    """It would be among those that are kept for a way back, and a backup or a compaction would meet it."""
    damaged, home = collection.snapshot.generation.number, engine.home.path
    folder = collection.store.path / "generations" / f"{damaged:06d}"
    engine.close()
    if damage == "keys":
        with (folder / "keys.faiss").open("ab") as file:
            file.write(b"x")
    else:
        rewrite_manifest(folder, format=99)  # of a later release
    with SearchEngine(home, encoder=HashingEncoder) as other:
        opened = other.collection("food")
        opened.refresh()
        assert damaged not in [one.number for one in opened.store.generations()]
        assert not folder.exists()
        assert opened.search("apple").hits
