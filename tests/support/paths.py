"""Folders of the repository, for tests that run its scripts and helper programs."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
SCRIPTS = ROOT / "scripts"
EXAMPLE = ROOT / "index" / "example"
PURPOSES = ROOT / "index" / "purposes"  # a model for predictions where searches and they had one log
EVERY_PART = ROOT / "index" / "every-part"  # a home with every kind of part, as one archive
RETIRED = ROOT / "index" / "retired"  # models with parts that are not served any more
REAL_DATA = ROOT.parent / "shared" / "data"  # real collections, where they lie beside the repository
