from __future__ import annotations

import pytest

from dsearch.errors import InvalidSource
from dsearch.evaluation import (
    read_pairs,
    read_qrels,
    seen_documents,
    split_seen,
    without_pairs,
)


def file(tmp_path, content):
    path = tmp_path / "file.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td 2\t0\nq2\td1\t1\n",
        "q1\td1\t2\nq1\td 2\t0\nq2\td1\t1",
        "\ufeffquery_id\tdoc\tgrade\r\nq1\td1\t2\r\n\r\nq1\td 2\t0\r\nq2\td1\t1\r\n",
        "q1\t0\td1\t2\nq1\t0\td 2\t0\nq2\t0\td1\t1\n",
    ],
    ids=["beir", "no header", "bom and crlf", "trec"],
)
def test_the_layouts_that_are_about(tmp_path, content):
    assert read_qrels(file(tmp_path, content)) == {"q1": {"d1": 2.0, "d 2": 0.0}, "q2": {"d1": 1.0}}


def test_trec_separated_by_blanks(tmp_path):
    assert read_qrels(file(tmp_path, "q1 0   d1 2\nq2 0 d1 -1\n")) == {"q1": {"d1": 2.0}, "q2": {"d1": -1.0}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1\td1", "2 columns"),
        ("q1\td2\thigh", "grade 'high'"),
        ("q1\td2\tnan", "grade 'nan'"),
        ("q1\t\t1", "empty query id or document id"),
        ("q1\td1\t3", "judged 3 here and 2 before"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = file(tmp_path, f"query-id\tcorpus-id\tscore\nq1\td1\t2\n{line}\n")
    with pytest.raises(InvalidSource, match=f"{path}:3: .*{message}"):
        read_qrels(path)


def test_a_bad_first_line_is_not_taken_for_a_header(tmp_path):
    with pytest.raises(InvalidSource, match=":1: grade 'x'"):
        read_qrels(file(tmp_path, "q1\td1\tx\n"))


def test_repeated_pairs_count_once_and_are_told(tmp_path):
    problems = []
    path = file(tmp_path, "q1\td1\t2\nq1\td2\t1\nq1\td1\t2\n")
    assert read_qrels(path, problems.append) == {"q1": {"d1": 2.0, "d2": 1.0}}
    assert problems == [f"{path}:3: query 'q1' and document 'd1' stand here twice; counted once"]


def test_files_that_are_missing_or_not_utf8(tmp_path):
    with pytest.raises(InvalidSource, match=r"nowhere\.tsv: no qrels file there"):
        read_qrels(tmp_path / "nowhere.tsv")
    with pytest.raises(InvalidSource, match=r":2: byte 2 is not UTF-8"):
        read_qrels(file(tmp_path, b"q1\td1\t1\nq\xff\td\t1\n"))


def test_pairs(tmp_path):
    assert read_pairs(file(tmp_path, "query-id\tcorpus-id\n1\t486\n1\t12\n2\t9\n")) == {
        "1": {"486", "12"},
        "2": {"9"},
    }
    with pytest.raises(InvalidSource, match=r":2: .*a pair is two columns"):
        read_pairs(file(tmp_path, "1\t2\n1\t2\t3\n"))


def test_a_header_is_the_first_line_alone(tmp_path):
    """A query may be called as a column is."""
    (tmp_path / "pairs").write_text("query-id\tcorpus-id\nquery\td1\nqid\td2\n")
    assert read_pairs(tmp_path / "pairs") == {"query": {"d1"}, "qid": {"d2"}}
    (tmp_path / "qrels").write_text("query_id\tcorpus-id\tscore\nquery\td1\t1\nqid\td2\t2\n")
    assert read_qrels(tmp_path / "qrels") == {"query": {"d1": 1.0}, "qid": {"d2": 2.0}}
    for header in ("query-id", "query_id", "queryid", "qid", "query", "QUERY-ID"):
        (tmp_path / "pairs").write_text(f"{header}\tdocument\nq\td\n")
        assert read_pairs(tmp_path / "pairs") == {"q": {"d"}}


def test_leaving_pairs_out_keeps_the_queries_and_the_original():
    qrels = {"q": {"a": 1.0, "b": 2.0}, "r": {"a": 1.0}}
    assert without_pairs(qrels, {"q": {"a"}, "r": {"a"}}) == {"q": {"b": 2.0}, "r": {}}
    assert qrels["q"] == {"a": 1.0, "b": 2.0}
    assert without_pairs(qrels, None) == qrels


def test_seen_and_unseen():
    train = {"t1": {"a": 1.0, "b": 0.0}, "t2": {"c": 2.0}}
    test = {
        "seen": {"a": 1.0, "x": 1.0},
        "judged but not relevant in training": {"b": 1.0},
        "not relevant in the test": {"a": 0.0, "x": 1.0},
        "nothing relevant": {"a": 0.0},
    }
    assert seen_documents(train) == {"a", "c"}
    assert split_seen(test, train) == (
        ["seen"],
        ["judged but not relevant in training", "not relevant in the test"],
    )


def test_pairs_without_a_header_begin_with_their_first_line(tmp_path):
    assert read_pairs(file(tmp_path, "1\t486\n2\t9\n")) == {"1": {"486"}, "2": {"9"}}
    for half in ("1\t\n", "\t9\n"):
        with pytest.raises(InvalidSource, match="a pair is two columns"):
            read_pairs(file(tmp_path, half))


@pytest.mark.parametrize("line", ["\td1\t1\n", "q1\t\t1\n"])
def test_a_judgement_needs_both_ids(tmp_path, line):
    with pytest.raises(InvalidSource, match="empty query id or document id"):
        read_qrels(file(tmp_path, line))
