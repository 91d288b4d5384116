"""Flipped bits and cut ends in every kind of file: named, refused, or without any effect.

The trials are in damage_trials.py; scripts/soak_store.py runs them by the thousand.
"""

from __future__ import annotations

import pytest
from damage_trials import damages

from dsearch.index import Manifest
from dsearch.store import store as store_module


def test_damage_to_any_file_is_named_or_changes_nothing(tmp_path):
    seen = damages(tmp_path, 310)
    assert seen["kinds of files"] >= 15
    assert seen["found by verify"] + seen["refused"] >= 200


def test_the_trials_can_fail_without_the_digests_of_generations(tmp_path, monkeypatch):
    """Vacuity: FAISS and NumPy read most flipped bits without a word."""
    monkeypatch.setattr(Manifest, "verify", lambda *given, **named: None)
    monkeypatch.setattr("dsearch.engine.verifying._embeddings", lambda *given: ())
    with pytest.raises(AssertionError, match=r"keys\.faiss|embeddings\.npy"):
        damages(tmp_path, 40, only=("keys.faiss", "embeddings.npy"))


def test_the_trials_can_fail_without_the_watermark(tmp_path, monkeypatch):
    """Vacuity: SQLite drops what follows a flipped bit in its log, and all that is left agrees."""
    monkeypatch.setattr(store_module, "check_database", lambda *given, **named: None)
    with pytest.raises(AssertionError, match=r"documents\.db-wal"):
        damages(tmp_path, 20, only=("documents.db-wal",))
