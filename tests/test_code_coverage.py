"""What CI says of coverage: figures of coverage.py's report, a row for each run that was measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import SCRIPTS

BENCH = SCRIPTS / "bench"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """scripts/bench/code_coverage.py, which no package holds."""
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("code_coverage", BENCH / "code_coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("records", None)


def test_lines_and_branches_are_counted_apart(tool: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    counted = {"covered_lines": 90, "num_statements": 120, "covered_branches": 3, "num_branches": 8}
    report.write_text(json.dumps({"totals": counted}))
    assert tool.totals(report) == ("75.0%", "37.5%")


def test_a_run_replaces_its_own_row_alone(tool: ModuleType) -> None:
    quick = ["scripts/test -m quick", "60.0%", "40.0%", "2026-01-01", "0123456a"]
    whole = ["scripts/test", "90.0%", "80.0%", "2026-01-02", "0123456b"]
    later = [*whole[:1], "91.0%", "81.0%", "2026-01-03", "0123456c"]
    record = tool.with_row(tool.with_row(None, quick), whole)
    assert record.rows == [whole, quick]
    record = tool.with_row(record, later)
    assert record.rows == [later, quick]
    assert (record.date, record.commit) == ("2026-01-03", "0123456c")


def test_the_sentence_names_day_and_commit(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["code_coverage", "--recorded"])
    tool.main()
    row = ["scripts/test", "90.0%", "80.0%", "2026-01-02", "0123456b"]
    tool.write_record(tool.NAME, tool.with_row(None, row), tmp_path)
    tool.main()
    assert capsys.readouterr().out.splitlines() == [
        "coverage was never measured",
        "coverage of scripts/test, measured at 0123456b on 2026-01-02: lines 90.0%, branches 80.0%",
    ]
