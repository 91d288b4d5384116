"""Bad training data is named by file and line, counted, left out, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsearch.engine import Collection
from dsearch.errors import InvalidSource
from dsearch.training.data.validation import SHOWN, checked_judgements

JUDGED = [
    ("a", "d0", "1"),  # line 2
    ("a", "d1", "2"),
    ("a", "d0", "1"),  # line 4: twice
    ("a", "d1", "1"),  # line 5: contradicts line 3
    ("b", "gone", "1"),  # line 6: unknown, and so nothing answers b
    ("c", "d2", "1"),  # line 7: c has no text
    ("d", "d3", "0"),  # line 8: nothing answers d
    ("e", "d4", "1"),
    ("f", "d5", "1"),
    ("f", "d5", "0"),  # line 11: all of f contradicts
    ("c", "d6", "1"),  # a query is named once
    ("d", "d7", "0"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "qrels").mkdir()
    lines = [json.dumps({"_id": id, "text": f"words of {id}"}) for id in "abdef"]
    lines += [json.dumps({"_id": "a", "text": "again"}), json.dumps({"_id": "g", "text": " "})]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines) + "\n")
    rows = "".join("\t".join(row) + "\n" for row in JUDGED)
    (tmp_path / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return tmp_path


def test_each_bad_line_is_named_and_counted(collection: Collection, folder: Path) -> None:
    checked = checked_judgements(collection, folder, "train")
    report = checked.report
    assert dict(report.counts) == {
        "duplicate pairs": 1,
        "contradictions": 2,
        "unknown documents": 1,
        "queries without text": 1,
        "queries without a positive": 3,
        "unreadable queries": 2,
    }
    text = report.to_text()
    for line in (
        "queries.jsonl:6: duplicate query id 'a'",
        "queries.jsonl:7: query 'g' has no text",
        "train.tsv:4: query 'a' and document 'd0' stand here again; counted once",
        "train.tsv:5: query 'a' and document 'd1' are judged 1 here and 2 in line 3; left out",
        "train.tsv:6: document 'gone' is not in collection 'food'",
        "train.tsv:6: nothing answers query 'b'",
        "train.tsv:7: query 'c' has no text among the queries",
        "train.tsv:8: nothing answers query 'd'",
        "nothing answers query 'f': its judgements contradict",
        "left out: contradictions: 2, duplicate pairs: 1",
    ):
        assert line in text, line
    assert checked.qrels["a"] == {"d0": 1.0}
    assert checked.qrels["f"] == {}
    assert checked.queries["a"] == "words of a"


def test_strict_refuses_what_is_not_sound(collection: Collection, folder: Path) -> None:
    with pytest.raises(InvalidSource, match=r"not sound \(--strict\)") as caught:
        checked_judgements(collection, folder, "train", strict=True)
    assert "train.tsv:5" in str(caught.value)
    (folder / "qrels" / "train.tsv").write_text("a\td0\t1\nb\td1\t1\n")
    (folder / "queries.jsonl").write_text('{"_id": "a", "text": "x"}\n{"_id": "b", "text": "y"}\n')
    checked = checked_judgements(collection, folder, "train", strict=True)
    assert (checked.report.to_text(), len(checked.qrels)) == ("", 2)


def test_only_the_first_places_are_shown(collection: Collection, folder: Path) -> None:
    rows = "".join(f"a\tgone{i}\t1\n" for i in range(SHOWN + 30))
    (folder / "qrels" / "train.tsv").write_text(rows + "a\td0\t1\n")
    text = checked_judgements(collection, folder, "train").report.to_text()
    assert text.count("\n") == SHOWN + 1
    assert "more\nleft out: unknown documents: 50" in text
    (folder / "queries.jsonl").write_text('{"_id": "a", "text": "x"}\n' * (SHOWN + 8))
    assert "unreadable queries: 27" in checked_judgements(collection, folder, "train").report.to_text()
