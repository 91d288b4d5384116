"""Constants that decide the limits of the service."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "service.batching.search": {
        "LARGEST_BATCH": 64,
        "LARGEST_BATCH_CANDIDATES": 16_384,
    },
    "service.compat.embeddings": {
        "MAX_INPUTS": 2048,
    },
    "service.compat.files": {
        "_FRAME_BYTES": 65_536,
    },
    "service.compat.rerank": {
        "MAX_DOCUMENTS": 1000,
    },
    "service.compat.retrieve": {
        "MAX_TOP": 100,
        "MAX_REWARDS": 1000,
        "_GOOD": 0.5,
    },
    "service.compat.store_files": {
        "MAX_ATTRIBUTES": 16,
    },
    "service.compat.store_parts": {
        "MAX_BATCH": 500,
        "PATIENCE_S": 20.0,
        "_MARGIN_S": 1.0,
    },
    "service.compat.vector_stores": {
        "MAX_RESULTS": 50,
        "MAX_QUERIES": 16,
        "_DEPTH": 16,
    },
    "service.mcp.tools": {
        "MAX_FOUND": 50,
        "MAX_ADDED": 100,
    },
    "service.overload.admission": {
        "BURST": 64,
        "TWO_BATCHES": 36,
        "SHORT_S": 0.04,
        "LONG_S": 1.0,
        "LEAST": 8,
        "MOST": 256,
        "CALM_S": 1.0,
        "TIGHT_S": 60.0,
        "MAX_IN_FLIGHT": 1024,
        "MOST_REFUSED": 0.9,
        "_LOOK_EVERY_S": 0.02,
        "_FADING": 0.7,
    },
    "service.routes.guide": {
        "MAX_QUERY_CHARACTERS": 200,
        "RESULTS": 10,
    },
    "service.routes.tasks": {
        "WATCHERS": 64,
    },
    "service.schemas.attend": {
        "MAX_BIAS": 2_000_000,
    },
    "service.schemas.documents": {
        "MAX_DELETED_IDS": 10_000,
        "MAX_PASSAGE_TOKENS": 100_000,
        "MAX_FACET_FIELDS": 16,
        "MAX_FACET_VALUES": 100,
        "MAX_DIMENSION": 16_384,
    },
    "service.schemas.feedback": {
        "MAX_EVENTS": 1000,
    },
    "service.schemas.search": {
        "MAX_QUERY_CHARACTERS": 8192,
        "MAX_QUERIES": 256,
        "MAX_BATCH_HITS": 25_600,
        "MAX_IDS": 1000,
    },
    "service.schemas.tasks": {
        "MAX_JUDGED_QUERIES": 50_000,
        "MAX_REMEMBERED": 1000,
        "MAX_SYSTEMS": 8,
        "MAX_EXCLUDED": 1000,
        "MAX_FULL_EPOCHS": 20,
    },
    "service.state": {
        "SEARCHES_WAITING": 256,
        "SEARCH_CHARACTERS_WAITING": 1 << 20,
        "WRITES_WAITING": 64,
        "WRITE_CHARACTERS_WAITING": 32 << 20,
        "FEEDBACK_WAITING": 64,
        "ENCODINGS_WAITING": 64,
        "ENCODING_CHARACTERS_WAITING": 16 << 20,
        "CALIBRATE_AFTER_S": 5.0,
    },
    "service.tasks.manager": {
        "QUEUED": 32,
    },
    "service.tasks.store": {
        "KEPT_TASKS": 1000,
        "KEPT_EVENTS": 2000,
    },
    "service.tasks.uploads": {
        "WAITING": 8,
    },
    "service.telemetry.metrics": {
        "_SECONDS": (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        "_SIZES": (1, 2, 4, 8, 16, 32, 64),
        "_SHARES": (0.5, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0),
        "_NATS": (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6),
    },
    "service.uploads.attaching": {
        "MAX_WAITING": 1000,
        "MAX_FAILED": 1000,
        "MAX_BATCHES": 256,
    },
    "service.uploads.files": {
        "MAX_FILES": 10_000,
        "MAX_BYTES": 4096 << 20,
        "MAX_NAME_CHARACTERS": 255,
        "_AT_A_TIME": 1 << 20,
    },
    "service.uploads.reading": {
        "MAX_UNPACKED_BYTES": 64 << 20,
        "MAX_TEXT_BYTES": 8 << 20,
        "MAX_DOCUMENTS": 10_000,
        "MAX_SECONDS": 120.0,
        "MAX_MEMORY_BYTES": 2048 << 20,
    },
    "service.wire.json": {
        "MAX_DEPTH": 64,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}
