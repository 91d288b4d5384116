"""What CI says of coverage: figures of coverage.py's report, a row for each run that was measured."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import coverage
import coverage.exceptions
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


def data_files(folder: Path, monkeypatch: pytest.MonkeyPatch, whole: int) -> list[Path]:
    """As many files of data in a folder, and the settings by which coverage.py finds them."""
    monkeypatch.setenv("COVERAGE_FILE", str(folder / "coverage"))
    monkeypatch.setenv("COVERAGE_RCFILE", str(folder / "none.toml"))
    (folder / "none.toml").write_text("")
    files = [folder / f"coverage.host.pid{number}.X" for number in range(whole)]
    for number, file in enumerate(files):
        data = coverage.CoverageData(str(file))
        data.add_lines({"measured.py": [number + 1]})
        data.write()
        data.close()
    return files


def cut_off(file: Path, left: int) -> None:
    """Leave so many bytes, as a killed process does; files of the same content count once."""
    file.write_bytes(file.read_bytes()[:left])


def test_the_data_of_killed_processes_are_one_sentence(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(data_files(tmp_path, monkeypatch, whole=6)[2], 4096)
    monkeypatch.setattr(sys, "argv", ["code_coverage", "--combine", str(tmp_path)])
    tool.main()
    told = "coverage: 1 of 6 data files were cut off, as by the tests that kill processes\n"
    assert capsys.readouterr() == (told, "")
    data = coverage.CoverageData(str(tmp_path / "coverage"))
    data.read()
    assert sorted(data.lines("measured.py") or []) == [1, 2, 4, 5, 6]


def test_what_else_is_wrong_with_the_data_is_said(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = data_files(tmp_path, monkeypatch, whole=6)
    with sqlite3.connect(files[0]) as other:
        other.execute("UPDATE coverage_schema SET version = 1")
    other.close()
    assert tool.combine(tmp_path).startswith("coverage: 0 of 6 data files")
    assert "wrong schema: 1 instead of" in capsys.readouterr().err
    full = tmp_path / "full"
    full.mkdir()
    for number, file in enumerate(data_files(full, monkeypatch, whole=6)[:2]):
        cut_off(file, 4096 + number)
    monkeypatch.setattr(sys, "argv", ["code_coverage", "--combine", str(full)])
    with pytest.raises(SystemExit, match=r"2 of 6 data files .* too many: is the disk full\?"):
        tool.main()
    with pytest.raises(coverage.exceptions.NoDataError):
        tool.combine(full / "nothing")


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
