"""Files of folds and the parts of a cross-validation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsearch.errors import InvalidSource
from dsearch.evaluation.qrels import cross_validation, read_folds

QRELS = {"a": {"d1": 1.0}, "b": {"d2": 2.0, "d3": 0.0}, "c": {"d1": 1.0}}


def written(folder: Path, content: object) -> Path:
    path = folder / "folds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_folds_are_read_bare_or_under_their_key(tmp_path: Path) -> None:
    folds = {"a": 0, "b": 3}
    assert read_folds(written(tmp_path, folds)) == folds
    assert read_folds(written(tmp_path, {"seed": 1, "folds": folds})) == folds


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON in UTF-8"),
        ([], "folds are"),
        ({}, "folds are"),
        ({"folds": {}}, "folds are"),
        ({"folds": [1]}, "folds are"),
        ({"a": -1}, "fold -1 of query 'a' is not a whole number from 0"),
        ({"a": 0, "b": True}, "fold True of query 'b'"),
        ({"a": 1.0}, r"fold 1\.0 of query 'a'"),
        ({"a": "0"}, "fold '0' of query 'a'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InvalidSource, match=message):
        read_folds(written(tmp_path, content))
    with pytest.raises(InvalidSource, match="no file of folds there that can be read"):
        read_folds(tmp_path / "none.json")


def test_each_fold_is_tested_by_what_the_others_teach() -> None:
    folds = list(cross_validation(QRELS, {"a": 7, "b": 2, "c": 7, "unjudged": 9}))
    assert [fold.number for fold in folds] == [2, 7]
    assert (folds[0].train, folds[0].test) == ({"a": QRELS["a"], "c": QRELS["c"]}, {"b": QRELS["b"]})
    assert (folds[1].train, folds[1].test) == ({"b": QRELS["b"]}, {"a": QRELS["a"], "c": QRELS["c"]})
    folds[0].test["b"]["d2"] = 0.0
    assert QRELS["b"]["d2"] == 2.0


def test_queries_without_a_fold_and_a_single_fold_are_refused() -> None:
    with pytest.raises(InvalidSource, match="2 of 3 judged queries are in no fold, such as 'b'"):
        list(cross_validation(QRELS, {"a": 0}))
    with pytest.raises(InvalidSource, match=r"one fold has every judged query \(3\)"):
        list(cross_validation(QRELS, dict.fromkeys(QRELS, 4)))
