"""`dsearch synthesize`: questions out of documents, and the command that learns from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cli.terminal import Terminal

from dsearch.errors import InvalidRequest


class FirstWords:
    """Asks for the first words of a passage."""

    def __init__(self, folder: Path | None, *, device: str):
        assert (folder, device) == (None, "cpu")

    def questions(self, passages: Sequence[str]) -> list[str]:
        return [f"where is {' '.join(passage.split()[:2])}?" for passage in passages]

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [-1.0 if question.split()[2] in passage.split() else -9.0 for question, passage in pairs]


def test_questions_are_written_and_continued(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsearch.training.QuestionWriter", FirstWords)
    notes, path = tmp_path / "notes", tmp_path / "questions.jsonl"
    notes.mkdir()
    for n in range(6):
        text = f"river{n} bridge{n} and then some more words that make it long enough to be asked about"
        (notes / f"n{n}.txt").write_text(text)
    assert dsearch("index", notes, "-c", "notes")[0] == 0
    code, out, err = dsearch("synthesize", path, "-c", "notes", "--documents", "4", "--within", "2")
    assert code == 0, err
    assert f"{path}: 4 documents read, 4 questions, of which " in out
    assert "find their document among the best 2" in out
    assert f"dsearch train -c notes --data {path}" in err
    code, out, _ = dsearch("synthesize", path, "-c", "notes", "--json")
    result: dict[str, Any] = json.loads(out)
    assert (code, result["documents"], result["questions"]) == (0, 6, 6)
    assert len(path.read_text().splitlines()) == 6
    scores = tmp_path / "teacher.tsv"
    options = ["--teacher", scores, "--teacher-documents", "2"]
    code, out, err = dsearch("synthesize", path, "-c", "notes", *options)
    assert (code, f"{scores}: 6 questions scored, 12 scores" in out) == (0, True), err
    assert f"dsearch train -c notes --data {path} --objective teacher --teacher {scores}" in err
    assert "where is n3 river3?\tn3.txt\t-1.0000\n" in scores.read_text()


def test_questions_are_written_on_the_device_that_was_asked_for(
    dsearch: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writer(folder: Path, *, device: str) -> None:
        raise InvalidRequest(f"{folder} on {device}")

    monkeypatch.setattr("dsearch.training.QuestionWriter", writer)
    assert dsearch("create", "notes")[0] == 0
    asked = ("synthesize", "out.jsonl", "-c", "notes", "--model", "mine", "--device", "cuda:1")
    assert dsearch(*asked)[::2] == (1, "dsearch: mine on cuda:1\n")


def test_a_list_of_languages_is_checked(dsearch: Terminal) -> None:
    code, _, err = dsearch("create", "papers", "--language", "german,klingon")
    assert code != 0
    assert "language 'klingon' in a list; use some of arabic" in err
    code, out, _ = dsearch("create", "papers", "--language", "german,english")
    assert (code, out.strip()) == (0, "papers: created, language german,english")
