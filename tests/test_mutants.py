"""The list of faults fits the code: each text is where it is said to be, and its tests are there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import ROOT


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    """scripts/tools/mutants.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("mutants_tool", ROOT / "scripts" / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_each_fault_can_be_applied_and_has_tests(mutants: ModuleType) -> None:
    faults = mutants.faults()
    wrong = [f"{one.group}: {one.name}: {why}" for one in faults if (why := one.problem(ROOT))]
    assert wrong == []
    assert len({fault.name for fault in faults}) == len(faults) >= 50


def test_a_fault_that_does_not_fit_is_said(mutants: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "dsearch").mkdir()
    (tmp_path / "dsearch" / "one.py").write_text("value = 1\nother = 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(
        "def test_it(): ...\nclass TestAll:\n    def test_inside(self): ...\n"
    )

    def problem(
        text: str, replacement: str, *, file: str = "one.py", test: str = "test_one.py"
    ) -> str | None:
        return mutants.Fault("g", "n", file, text, replacement, (test,)).problem(tmp_path)

    assert problem("value = 1", "value = 2", test="test_one.py::test_it") is None
    assert problem("value = 1", "value = 2", test="test_one.py::test_that") == (
        "no test test_that in tests/test_one.py"
    )
    assert problem("value = 1", "value = 2", test="test_one.py::TestAll::test_inside") is None
    assert problem("value = 1", "value = 2", test="test_one.py::test_inside") == (
        "no test test_inside in tests/test_one.py"
    )
    assert problem("value", "2", file="two.py") == "no file two.py"
    assert problem("= 1", "= 2") == "its text occurs 2 times in one.py, not once"
    assert problem("value = 1", "value = 1") == "its replacement is its text"
    assert "line 1 of one.py does not compile" in str(problem("value = 1", "value = ("))


def test_faults_are_chosen_by_group_or_folder(
    mutants: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutants", "--dry", "training/gate"])
    assert mutants.main() == 0
    gate = [one for one in mutants.faults() if one.file.startswith("training/gate/")]
    assert capsys.readouterr().out == f"{len(gate)} faults apply and compile\n"
    monkeypatch.setattr(sys, "argv", ["mutants", "--dry", "nowhere"])
    with pytest.raises(SystemExit):
        mutants.main()
    groups = ", ".join(sorted({one.group for one in mutants.faults()}))
    assert f"no fault in 'nowhere'; use {groups}\n" in capsys.readouterr().err
