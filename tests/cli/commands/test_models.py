"""What `dsearch models` says of a version, and what a remembered query needs and gives."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.cli.commands.models import _described, _judged
from dsearch.errors import InvalidRequest
from dsearch.results import MemoryResult


def said(record: dict[str, Any], *, problem: str | None = None) -> str:
    model: Any = SimpleNamespace(record=record, parent="v0", problem=problem)
    return _described(model)


GATE = {"gate": {"verdict": "passed"}, "verdict": "better"}


def test_learned_values_name_their_field() -> None:
    record = {"scope": "values", "objective": "context", "field": "year", "examples": 40, **GATE}
    text = "values of 'year' learned behind v0, 40 documents; gate: passed, better"
    assert said(record) == text
    assert said(record, problem="gone") == f"{text}; no longer served: gone"


def test_a_version_that_is_no_longer_served_says_why() -> None:
    assert said({"scope": "uploaded"}, problem="gone").endswith("; no longer served: gone")
    assert said(GATE, problem="gone").endswith("better; no longer served: gone")


def test_a_query_has_ids_or_judgements_come_from_a_folder(beir: Any) -> None:
    assert _judged("river", ["a", "b"], None, "train") == ({"q": "river"}, {"q": {"a": 1.0, "b": 1.0}})
    queries, judgements = _judged(None, None, beir, "test")
    assert len(queries) == len(judgements) == 30
    assert judgements["q30"] == {"d30": 1.0}
    for query, ids, data in ((None, None, None), ("river", None, None), ("river", ["a"], beir)):
        with pytest.raises(InvalidRequest, match="give a query and the ids of documents that answer it, or"):
            _judged(query, ids, data, "train")


@pytest.mark.parametrize(("model", "lines"), [("v0", 2), ("v1", 3)])
def test_the_way_back_from_a_remembered_query_is_the_operation_before_it(
    dsearch: Any, monkeypatch: pytest.MonkeyPatch, model: str, lines: int
) -> None:
    assert dsearch("create", "papers")[0] == 0
    done = MemoryResult(model, "v0", 1, 1, {"unknown documents": 2}, sequence=41)
    monkeypatch.setattr("dsearch.training.remember", lambda *_, **__: done)
    code, out, err = dsearch("remember", "river", "d1", "-c", "papers")
    assert code == 0
    assert "left out: unknown documents: 2" in err
    printed = out.splitlines()
    assert len(printed) == lines
    assert printed[0] == f"papers: {model} remembers 1 judgement of 1 query"
    assert printed[-1] == "Undo: dsearch rollback --rows 40 -c papers"


def test_the_way_back_from_a_remembered_query_names_the_home(
    dsearch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = ("--home", str(tmp_path / "other"))
    assert dsearch("create", "papers", *home)[0] == 0
    done = MemoryResult("v1", "v1", 1, 1, {}, sequence=41)
    monkeypatch.setattr("dsearch.training.remember", lambda *_, **__: done)
    code, out, err = dsearch("remember", "river", "d1", "-c", "papers", *home)
    assert code == 0, err
    assert f"Undo: dsearch rollback --home {home[1]} --rows 40 -c papers" in out
