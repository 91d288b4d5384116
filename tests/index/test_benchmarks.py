"""The script that compares approximate search runs, and says what is not there to compare with."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.paths import SCRIPTS
from support.warm.processes import run_warm

SCRIPT = SCRIPTS / "bench" / "approximate.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hnswlib") is not None, reason="hnswlib is installed, so it would be measured")
def test_approximate_search_is_measured_small(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = run_warm(
        [
            *(sys.executable, str(SCRIPT), "--documents", "2000", "--dim", "32", "--rounds", "1"),
            *("--systems", "IVFPQ", "SQ8", "hnswlib", "--json", str(figures)),
        ],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert "hnswlib" in found.pop("hnswlib")["problem"]
    assert set(found) == {"IVFPQ", "SQ8"}
    for one in found.values():
        assert one["recall"] >= 0.9
        assert one["queries_per_s"] > 0
