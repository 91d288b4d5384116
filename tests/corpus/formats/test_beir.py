from __future__ import annotations

import pytest

from dsearch.corpus import BeirFolder, Problems, read, read_queries, write_beir
from dsearch.errors import InvalidRequest, InvalidSource
from dsearch.evaluation.qrels import read_qrels
from dsearch.types import Document, Query

DOCUMENTS = [Document("d1", "text", "Title", {"year": 1999}), Document("d 2", "other", value=[1.0, 2.0])]
QUERIES = [Query("q1", "what"), Query("q2", "wie heißt")]
QRELS = {"test": {"q1": {"d1": 1.0, "d 2": 0.5}}, "train": {"q2": {"d1": 2.0}}}


def test_written_collections_read_back(tmp_path):
    folder = write_beir(tmp_path / "new" / "folder", DOCUMENTS, QUERIES, QRELS)
    assert list(folder.documents()) == DOCUMENTS
    assert list(read(folder.path)) == DOCUMENTS
    assert folder.queries() == QUERIES
    assert folder.splits() == ["test", "train"]
    assert folder.qrels_path("test").read_text() == "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td 2\t0.5\n"


def test_grades_are_written_exactly(tmp_path):
    grades = {"a": 1234567.0, "b": 0.1 + 0.2, "c": -3, "d": 1e-9, "e": True}
    path = write_beir(tmp_path, [], [], {"test": {"q": grades}}).qrels_path("test")
    written = [line.split("\t")[2] for line in path.read_text().splitlines()[1:]]
    assert written == ["1234567", "0.30000000000000004", "-3", "1e-09", "1"]
    assert read_qrels(path) == {"q": grades}


@pytest.mark.parametrize("mark", ["\t", "\n", "\r"], ids=["tab", "line", "return"])
def test_ids_that_qrels_cannot_hold_are_refused(tmp_path, mark):
    with pytest.raises(InvalidRequest, match="holds a tab or a line end"):
        write_beir(tmp_path, [], [], {"test": {"q": {f"a{mark}b": 1.0}}})


def test_a_value_of_zero_is_written(tmp_path):
    folder = write_beir(tmp_path, [Document("a", "text", value=0.0)], [], {})
    assert [document.value for document in folder.documents()] == [0.0]


def test_an_unknown_split_names_those_there_are(tmp_path):
    folder = write_beir(tmp_path, DOCUMENTS, QUERIES, QRELS)
    with pytest.raises(InvalidSource, match="no split 'dev'; there are test, train"):
        folder.qrels_path("dev")
    with pytest.raises(InvalidSource, match="no split 'test'; there are none"):
        write_beir(tmp_path / "bare", DOCUMENTS, QUERIES, {}).qrels_path("test")


def test_what_is_no_beir_folder(tmp_path):
    with pytest.raises(InvalidSource, match="no such file or folder"):
        BeirFolder(tmp_path / "nowhere")
    with pytest.raises(InvalidSource, match=r"no BEIR folder; judgements are .*queries\.jsonl.*or a file"):
        BeirFolder(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("")
    with pytest.raises(InvalidSource, match=r"queries\.jsonl: no such file"):
        BeirFolder(tmp_path).queries()
    (tmp_path / "corpus.jsonl").rename(tmp_path / "queries.jsonl")
    with pytest.raises(InvalidSource, match=r"corpus\.jsonl: no such file"):
        BeirFolder(tmp_path).documents()


def test_bad_queries_cost_only_themselves(tmp_path):
    path = tmp_path / "queries.jsonl"
    lines = [
        '{"_id": 1, "id": "of another", "text": "a"}',
        "{",
        '{"text": "x"}',
        '{"_id": "2", "text": " "}',
        '{"id": "1", "text": "b"}',
    ]
    path.write_text("\n".join([*lines, '{"id": "3", "text": "c"}']))
    problems = Problems()
    assert read_queries(path, problems) == [Query("1", "a"), Query("3", "c")]
    assert [problem.line for problem in problems.first] == [2, 3, 4, 5]
    assert [problem.message.split()[0] for problem in problems.first] == [
        "malformed",
        "a",
        "query",
        "duplicate",
    ]
    with pytest.raises(InvalidSource, match=r"queries\.jsonl:2: malformed"):
        read_queries(path)


def test_a_beir_folder_is_its_corpus_alone(tmp_path):
    write_beir(tmp_path, DOCUMENTS, QUERIES, QRELS)
    (tmp_path / "README.md").write_text("# About")
    assert [document.id for document in read(tmp_path)] == ["d1", "d 2"]
