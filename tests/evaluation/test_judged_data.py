"""Judgements as files: CSV, TSV, JSON lines, TREC and BEIR say the same."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dsearch.corpus import Problems
from dsearch.errors import InvalidSource
from dsearch.evaluation import merged_pairs
from dsearch.evaluation.judged_data import read_judged_data, splits_of

QRELS = {"undo, a training": {"d1": 2.0, "d2": 1.0}, "how many": {"d1": 0.0}}


def read(path: Path) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    data = read_judged_data(path, "test")
    return {query.id: query.text for query in data.queries}, merged_pairs(data.pairs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'query,document,grade\n"undo, a training",d1,2\n"undo, a training",d2,\nhow many,d1,0\n'),
        ("a.csv", '\ufeff"undo, a training",d1,2\r\n"undo, a training",d2,1\r\n\r\nhow many,d1,0\r\n'),
        ("a.csv", "query;document;grade\nundo, a training;d1;2\nundo, a training;d2;1\nhow many;d1;0\n"),
        ("a.tsv", "undo, a training\td1\t2\nundo, a training\td2\t1\nhow many\td1\t0\n"),
        ("a.txt", "undo, a training\t0\td1\t2\nundo, a training\t0\td2\t1\nhow many\t0\td1\t0\n"),
        (
            "a.jsonl",
            "\n".join(
                json.dumps(one)
                for one in [
                    {"query": "undo, a training", "document": "d1", "grade": 2},
                    {"query": "undo, a training", "document": "d2"},
                    {"query": "how many", "document": "d1", "score": 0},
                ]
            ),
        ),
    ],
)
def test_queries_are_texts(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read(tmp_path / name) == ({query: query for query in QRELS}, QRELS)
    assert splits_of(tmp_path / name) == []


@pytest.mark.parametrize("beside", ["queries.jsonl", "queries.tsv"])
@pytest.mark.parametrize("name", ["qrels.txt", "qrels.csv"])
def test_queries_beside_a_file_give_the_texts_of_its_ids(tmp_path, beside, name):
    queries = {"queries.jsonl": '{"_id": "1", "text": "undo it"}\n', "queries.tsv": "1\tundo it\n"}
    (tmp_path / beside).write_text(queries[beside])
    (tmp_path / name).write_text({"qrels.txt": "1 0 d1 2\n", "qrels.csv": "1,d1,2\n"}[name])
    assert read(tmp_path / name) == ({"1": "undo it"}, {"1": {"d1": 2.0}})


@pytest.mark.parametrize("beside", ["queries.jsonl", "queries.tsv"])
@pytest.mark.parametrize("name", ["judged.csv", "judged.jsonl"])
def test_queries_beside_a_file_that_are_others_say_nothing_of_it(tmp_path, beside, name):
    queries = {"queries.jsonl": '{"_id": "1", "text": "undo it"}\n', "queries.tsv": "1\tundo it\n"}
    (tmp_path / beside).write_text(queries[beside])
    judged = {"judged.csv": "river,d1,1\n", "judged.jsonl": '{"query": "river", "document": "d1"}\n'}
    (tmp_path / name).write_text(judged[name])
    assert read(tmp_path / name) == ({"river": "river"}, {"river": {"d1": 1.0}})


def test_queries_beside_a_file_are_looked_for_in_both_forms(tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"_id": "9", "text": "of something else"}\n')
    (tmp_path / "queries.tsv").write_text("1\tundo it\n")
    (tmp_path / "qrels.txt").write_text("1 0 d1 2\n")
    assert read(tmp_path / "qrels.txt") == ({"1": "undo it"}, {"1": {"d1": 2.0}})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "1 0 d1 2\n", "TREC"),
        ("a.csv", "query\nundo\n", "a.csv:2: one column"),
        ("a.csv", "undo,d1,much\n", "a.csv:1: grade 'much' is not a finite number"),
        ("a.csv", "undo,,1\n", "a.csv:1: without query or document"),
        ("a.csv", "query,document\n", "no judgement"),
        ("a.csv", "undo, a training,d1,2\n", "a.csv:1: 4 columns; .* in double quotes"),
        ("a.csv", "document,query,grade\nd1,undo,1\n", "a.csv:1: the first column is 'document'"),
        ("a.jsonl", '{"query": "x"}', "a.jsonl:1: without query or document"),
        ("a.jsonl", '{"query": "x", "document": "d", "grade": []}', r"grade \[\] is not a finite number"),
        ("a.jsonl", "{", "a.jsonl:1: malformed JSON"),
        ("a.csv", b"\xff", "cannot be read as UTF-8"),
    ],
)
def test_errors_name_the_line(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidSource, match=message):
        read_judged_data(tmp_path / name, "test")


def test_unreadable_lines_of_json_can_be_collected(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"query": "x", "document": "d"}\nbroken\n')
    problems = Problems()
    assert len(read_judged_data(tmp_path / "a.jsonl", "test", problems).pairs) == 1
    assert problems.count == 1


def test_a_cell_that_is_too_long_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("undo,d1,1\nlonger,d1,1\n")
    before = csv.field_size_limit(4)
    try:
        with pytest.raises(InvalidSource, match=r"a\.csv:2: broken row"):
            read_judged_data(tmp_path / "a.csv", "test")
    finally:
        csv.field_size_limit(before)


def test_tabs_separate_queries_with_more_commas(tmp_path):
    (tmp_path / "a.tsv").write_text("what, when, who, why\td1\t2\n")
    assert read(tmp_path / "a.tsv")[1] == {"what, when, who, why": {"d1": 2.0}}


def test_a_line_ends_at_a_line_end_only(tmp_path):
    query = "one\u2028two"
    (tmp_path / "a.jsonl").write_text(json.dumps({"query": query, "document": "d"}, ensure_ascii=False))
    assert read(tmp_path / "a.jsonl")[1] == {query: {"d": 1.0}}


@pytest.mark.parametrize(
    ("grade", "expected"),
    [("", 1.0), (None, 1.0), (0, 0.0), ("0", 0.0), ("2.5", 2.5), (-1, -1.0), (True, 1.0)],
)
def test_a_line_without_a_grade_is_relevant_and_a_zero_stays(
    tmp_path: Path, grade: object, expected: float
) -> None:
    lines = [{"query": "undo", "document": "d1", "grade": grade}, {"query": "undo", "document": 7}]
    path = tmp_path / "judged.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pairs = read_judged_data(path, "test").pairs
    assert [(pair.query, pair.document, pair.grade) for pair in pairs] == [
        ("undo", "d1", expected),
        ("undo", "7", 1.0),
    ]


def test_an_empty_cell_is_no_grade(tmp_path: Path) -> None:
    path = tmp_path / "judged.tsv"
    path.write_text("undo\td1\t\nundo\td2\t0\nundo\td3\n")
    assert [pair.grade for pair in read_judged_data(path, "test").pairs] == [1.0, 0.0, 1.0]


def test_grade_and_score_are_one_name_and_the_grade_counts(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    path.write_text(
        '{"query": " undo ", "document": "d1", "score": 3}\n'
        '{"query": "undo", "document": "d2", "score": 3, "grade": 2}\n'
    )
    pairs = read_judged_data(path, "test").pairs
    assert [(pair.query, pair.grade) for pair in pairs] == [("undo", 3.0), ("undo", 2.0)]


@pytest.mark.parametrize(
    "line",
    [
        '{"query": "x", "document": true}',
        '{"query": " ", "document": "d"}',
        '{"query": "x", "document": ""}',
        '{"query": 3, "document": "d"}',
    ],
)
def test_a_line_without_query_or_document_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "judged.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InvalidSource, match=r"judged.jsonl:1: without query or document"):
        read_judged_data(path, "test")


def test_queries_beside_may_be_named_by_numbers_and_be_called_as_a_column_is(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": 3, "text": "undo it"}\n')
    (tmp_path / "judged.jsonl").write_text('{"query": 3, "document": 5, "grade": 1}\n')
    assert read(tmp_path / "judged.jsonl") == ({"3": "undo it"}, {"3": {"5": 1.0}})
    (tmp_path / "queries.jsonl").unlink()
    (tmp_path / "qrels.txt").write_text("3 0 d5 1\n4 0 d5 1\n")
    for header in ("", "qid\ttext\n", "id\tquery\n"):
        (tmp_path / "queries.tsv").write_text(f"{header}3\tscore\n4\tquery\n")
        assert read(tmp_path / "qrels.txt")[0] == {"3": "score", "4": "query"}


def test_words_of_a_header_are_queries_elsewhere(tmp_path: Path) -> None:
    """What names a column is a text like others where it cannot be a header."""
    (tmp_path / "judged.csv").write_text("id,d7,2\nundo,d5,1\n")
    assert read(tmp_path / "judged.csv")[1] == {"id": {"d7": 2.0}, "undo": {"d5": 1.0}}
    (tmp_path / "queries.tsv").write_text('document\tundo\nq2\tsay "no"\n')
    (tmp_path / "qrels.txt").write_text("document 0 d5 1\nq2 0 d5 1\n")
    assert read(tmp_path / "qrels.txt")[0] == {"document": "undo", "q2": 'say "no"'}
    (tmp_path / "queries.tsv").write_text('document,"undo, then"\nq2,redo\n')
    assert read(tmp_path / "qrels.txt")[0] == {"document": "undo, then", "q2": "redo"}
    (tmp_path / "queries.tsv").unlink()
    (tmp_path / "judged.tsv").write_text("undo\td5\td7\t1\n")
    with pytest.raises(InvalidSource, match="4 columns; a line has query, document"):
        read_judged_data(tmp_path / "judged.tsv", "test")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("queries.jsonl", '{"query": "undo", "document": "d1"}\n', {"undo": {"d1": 1.0}}),
        ("a.csv", "undo,d1,2\n ,\t \nredo,d2,1\n", {"undo": {"d1": 2.0}, "redo": {"d2": 1.0}}),
        ("a.csv", "undo, then redo;d1\n", {"undo, then redo": {"d1": 1.0}}),
    ],
    ids=["no texts of its own", "a line of blanks", "as many commas as semicolons"],
)
def test_odd_files_are_read_as_they_are_meant(
    tmp_path: Path, name: str, text: str, expected: dict[str, dict[str, float]]
) -> None:
    (tmp_path / name).write_text(text)
    assert read(tmp_path / name) == ({query: query for query in expected}, expected)
