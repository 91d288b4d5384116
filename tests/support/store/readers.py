"""Functions for processes that read a collection which another one has open for writing."""

from __future__ import annotations

from pathlib import Path

from dsearch.processes import Report
from dsearch.store import Store


def count(report: Report, path: Path) -> int:
    """Number of documents."""
    with Store.open(path, readonly=True) as store:
        return store.count().documents
