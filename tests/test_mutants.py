"""The list of faults fits the code: each text is where it is said to be, and its tests are there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
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
    wrong = [
        f"{fault.group}: {fault.name}: {fault.occurrences(ROOT)} times in {fault.file}"
        for fault in faults
        if fault.occurrences(ROOT) != 1 or fault.text == fault.replacement
    ]
    for fault in faults:
        for test in fault.tests:
            file, _, name = test.partition("::")
            path = ROOT / "tests" / file
            if not path.is_file() or (name and f"def {name}(" not in path.read_text(encoding="utf-8")):
                wrong.append(f"{fault.group}: {fault.name}: no test {test}")
    assert wrong == []
    assert len({fault.name for fault in faults}) == len(faults) >= 50
