"""The committed measurements: `RESULTS.md` is rendered from the records, and their commands exist."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest
from support.guide.commands import commands_in, problem_with
from support.paths import ROOT, SCRIPTS


@pytest.fixture(scope="module")
def records() -> ModuleType:
    """The module `scripts/bench/records.py`, which no package holds."""
    spec = importlib.util.spec_from_file_location("bench_records", SCRIPTS / "bench" / "records.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_results_are_rendered_from_the_records(records: ModuleType) -> None:
    rendered = records.render(records.read_records())
    assert records.RENDERED.read_text("utf-8") == rendered, "run `python scripts/bench --render`"


def test_every_record_says_when_where_and_how(records: ModuleType) -> None:
    for name, record in records.read_records().items():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.date), name
        assert re.fullmatch(r"[0-9a-f]{8}\+?", record.commit), name
        assert record.machine, name
        assert record.command, name
        assert record.rows, name


def test_commands_of_the_results_exist(records: ModuleType) -> None:
    found = list(commands_in(records.RENDERED.read_text("utf-8")))
    assert len(found) > 30
    assert not {command: problem for command in found if (problem := problem_with(command, ROOT))}
