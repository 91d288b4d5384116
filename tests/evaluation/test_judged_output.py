"""Judgements written as files: each form by its letters, and nothing that is there is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsearch.errors import InvalidRequest
from dsearch.evaluation.judged_data import read_judged_data, table_of, write_judged_data

QUERIES = {"a": 'undo, "a" training', "b": "wie\tviele\nÄpfel"}
JUDGEMENTS = {"b": {"d2": 2.0, "d1": 0.5}, "a": {"d1": -1.0}}
WRITTEN = {
    "x.csv": (
        'query,document,grade\n"wie\tviele\nÄpfel",d2,2\n"wie\tviele\nÄpfel",d1,0.5\n'
        '"undo, ""a"" training",d1,-1\n'
    ),
    "x.tsv": (
        'query\tdocument\tgrade\n"wie\tviele\nÄpfel"\td2\t2\n"wie\tviele\nÄpfel"\td1\t0.5\n'
        '"undo, ""a"" training"\td1\t-1\n'
    ),
    "x.jsonl": (
        '{"query": "wie\\tviele\\nÄpfel", "document": "d2", "grade": 2}\n'
        '{"query": "wie\\tviele\\nÄpfel", "document": "d1", "grade": 0.5}\n'
        '{"query": "undo, \\"a\\" training", "document": "d1", "grade": -1}\n'
    ),
    "x.trec": "q1 0 d2 2\nq1 0 d1 0.5\nq2 0 d1 -1\n",
}
SAME = {"x.ndjson": "x.jsonl", "x.qrels": "x.trec", "X.CSV": "x.csv"}


@pytest.mark.parametrize("name", [*WRITTEN, *SAME])
def test_the_name_tells_the_form(tmp_path: Path, name: str) -> None:
    form = SAME.get(name, name)
    write_judged_data(tmp_path / name, QUERIES, JUDGEMENTS)
    assert (tmp_path / name).read_bytes().decode() == WRITTEN[form]
    beside = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir() if path.name != name}
    assert beside == (
        {"queries.tsv": 'q1\twie viele Äpfel\nq2\tundo, "a" training\n'} if form == "x.trec" else {}
    )


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.trec", "folder"])
def test_what_was_written_is_read_back(tmp_path: Path, name: str) -> None:
    phrase, open_quote = '"undo" a "training', '"how many'
    write_judged_data(tmp_path / name, {"a": phrase, "b": open_quote}, JUDGEMENTS)
    data = read_judged_data(tmp_path / name, "train")
    texts = {query.id: query.text for query in data.queries}
    assert [(texts[pair.query], pair.document, pair.grade) for pair in data.pairs] == [
        (open_quote, "d2", 2.0),
        (open_quote, "d1", 0.5),
        (phrase, "d1", -1.0),
    ]


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("x.csv", "x.csv"),
        ("x.trec", "x.trec"),
        ("x.trec", "queries.tsv"),
        ("x.trec", "queries.jsonl"),
        ("x", "x"),
    ],
)
def test_nothing_that_is_there_is_touched(tmp_path: Path, name: str, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(InvalidRequest, match=rf"{there} exists; give a name that is free"):
        write_judged_data(tmp_path / name, QUERIES, JUDGEMENTS)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {there: "mine"}


def test_queries_beside_another_form_are_none_of_its_business(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("mine")
    write_judged_data(tmp_path / "x.csv", QUERIES, JUDGEMENTS)
    assert (tmp_path / "queries.tsv").read_text() == "mine"


def test_other_names_and_ids_that_a_form_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"x\.xml: the name tells the format; end it in \.csv, \.tsv, "):
        write_judged_data(tmp_path / "x.xml", QUERIES, JUDGEMENTS)
    for id in ("d 1", "", "d\t1"):
        with pytest.raises(InvalidRequest, match="has white space, which TREC cannot hold"):
            write_judged_data(tmp_path / "x.trec", QUERIES, {"a": {id: 1.0}})
    assert list(tmp_path.iterdir()) == []
    assert table_of("csv", QUERIES, {}) == "query,document,grade\n"
    assert table_of("jsonl", QUERIES, {}) == ""


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.trec", "folder"])
def test_quotes_of_a_query_and_digits_of_a_grade_survive(tmp_path: Path, name: str) -> None:
    queries = {"1": '"new york" hotels', "2": '"an open quote', "3": '"a phrase"', "4": 'say "so"'}
    grades = {"1": 0.1234567, "2": 1234567.0, "3": 1 / 3, "4": 2.0}
    write_judged_data(tmp_path / name, queries, {query: {"d": grade} for query, grade in grades.items()})
    data = read_judged_data(tmp_path / name, "train")
    texts = {query.id: query.text for query in data.queries}
    assert [(texts[pair.query], pair.grade) for pair in data.pairs] == [
        (queries[query], grade) for query, grade in grades.items()
    ]
