"""Test collections in BEIR layout that lie beside a checkout, where there are any."""

from __future__ import annotations

from itertools import islice

import pytest
from support.paths import REAL_DATA

from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import Collection, PassageOptions, SearchEngine

DATA = REAL_DATA


def collection_of(engine: SearchEngine, name: str, most: int | None = None) -> Collection:
    """The collection `name`, or its first `most` documents, indexed when it is asked for first."""
    if not (DATA / name).is_dir():
        pytest.skip(f"needs {name} in BEIR layout in {DATA}")
    # The figures are those of one embedding a document, as published ones are.
    collection = engine.collection_or_new(name, passages=PassageOptions(none=True))
    collection.ingest(islice(BeirFolder(DATA / name).documents(Problems()), most))
    return collection
