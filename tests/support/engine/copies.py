"""Collections that are built once and copied: building takes many times as long as opening."""

from __future__ import annotations

import shutil
from pathlib import Path

from dsearch.engine import Collection, SearchEngine


def copied_collection(engine: SearchEngine, built: Path) -> Collection:
    """Copy the folder of a closed collection into an engine's home, and open it there."""
    shutil.copytree(built, engine.home.path / built.name)
    return engine.collection(built.name)
