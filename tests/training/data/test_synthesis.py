"""Questions out of documents: kept where they find their document, continued after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled, EncoderUnavailable, InvalidRequest, InvalidSource
from dsearch.evaluation.judged_data import read_judged_data
from dsearch.training import QuestionWriter, synthesize
from dsearch.training.data.synthesis import NO_QUESTION
from dsearch.training.data.writer import question_in
from dsearch.types import Document, Progress

FILLER = "and then some more words follow that make it long enough to be asked about at all"
DOCUMENTS = [Document(f"d{n}", f"river{n} bridge{n} {FILLER}") for n in range(12)]


class WordWriter:
    """Asks for a word of the passage; of every third document for one of another; of d5 nothing."""

    def __init__(self) -> None:
        self.passages: list[str] = []

    def questions(self, passages: Sequence[str]) -> list[str]:
        self.passages += passages
        numbers = [int(passage.split()[0].removeprefix("river")) for passage in passages]
        return ["" if n == 5 else f"where is river{n if n % 3 else n + 1}?" for n in numbers]


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=lambda: HashingEncoder(64)) as engine:
        collection = engine.create("rivers")
        collection.ingest([*DOCUMENTS, Document("short", "too short")])
        yield collection


def test_questions_that_find_their_document_are_judgements(collection: Collection, tmp_path: Path) -> None:
    path, progress = tmp_path / "questions.jsonl", list[Progress]()
    result = synthesize(collection, WordWriter(), path, within=1, batch_size=5, on_progress=progress.append)
    assert (result.documents, result.questions, result.accepted) == (12, 11, 7)
    assert [(one.done, one.total) for one in progress] == [(5, 12), (10, 12), (12, 12)]
    lines = {line["document"]: line for line in map(json.loads, path.read_text().splitlines())}
    assert lines.keys() == {one.id for one in DOCUMENTS}  # not the short one
    assert lines["d1"] == {"query": "where is river1?", "document": "d1", "grade": 1, "rank": 1}
    assert lines["d3"]["grade"] == 0
    assert (lines["d5"]["query"], lines["d5"]["grade"]) == (NO_QUESTION, 0)
    pairs = read_judged_data(path, "train").pairs  # as dsearch train reads it
    assert sum(pair.grade for pair in pairs) == 7


def test_no_question_is_no_judgement_though_it_finds_its_document(
    engine: SearchEngine, tmp_path: Path
) -> None:
    """Of one document it is found by anything."""
    alone = engine.create("alone")
    alone.ingest([Document("d5", f"river5 {FILLER}")])
    result = synthesize(alone, WordWriter(), path := tmp_path / "questions.jsonl")
    assert (result.documents, result.questions, result.accepted) == (1, 0, 0)
    line = {"query": NO_QUESTION, "document": "d5", "grade": 0, "rank": 1}
    assert json.loads(path.read_text()) == line


def test_a_batch_is_written_before_the_next_one_is_asked(collection: Collection, tmp_path: Path) -> None:
    path, lines = tmp_path / "questions.jsonl", list[int]()

    class Kept(WordWriter):
        def questions(self, passages: Sequence[str]) -> list[str]:
            lines.append(path.read_bytes().count(b"\n"))
            return super().questions(passages)

    synthesize(collection, Kept(), path, batch_size=5)
    assert lines == [0, 5, 10]


def test_questions_are_words_whatever_signs_they_have(collection: Collection, tmp_path: Path) -> None:
    """A minus excludes nothing, and what ends a line elsewhere ends none here."""
    path = tmp_path / "questions.jsonl"

    class Signs(WordWriter):
        def questions(self, passages: Sequence[str]) -> list[str]:
            return [f"{passage.split()[0]} \u2028 -{passage.split()[1]}" for passage in passages]

    accepted = synthesize(collection, Signs(), path, documents=6).accepted
    assert accepted == 6
    assert synthesize(collection, Signs(), path, documents=12).documents == 12


def test_it_continues_behind_what_is_written(collection: Collection, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    synthesize(collection, WordWriter(), whole, documents=9, batch_size=2)
    polls = iter([False, False, True])
    with pytest.raises(Cancelled, match="stopped after 4 documents; called again it goes on"):
        synthesize(collection, WordWriter(), parts, documents=6, batch_size=2, cancelled=lambda: next(polls))
    with parts.open("ab") as file:
        file.write(b'{"query": "cut o')  # a kill in the middle of a line
    writer = WordWriter()
    synthesize(collection, writer, parts, documents=6, batch_size=2)
    assert len(writer.passages) == 2
    result = synthesize(collection, writer, parts, documents=9, batch_size=2)
    assert (len(writer.passages), result.documents) == (5, 9)
    assert parts.read_text() == whole.read_text()
    assert synthesize(collection, writer, parts, documents=5).documents == 9  # nothing is left to do
    assert len(writer.passages) == 5


def test_other_files_and_numbers_are_refused(collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"query": "mine"}\n')
    with pytest.raises(InvalidSource, match="not a file of questions that dsearch synthesize wrote"):
        synthesize(collection, WordWriter(), path)
    path.write_text('{"query": "a?", "document": "elsewhere", "grade": 1, "rank": 1}\n')
    with pytest.raises(InvalidSource, match="questions of another collection"):
        synthesize(collection, WordWriter(), path)
    with pytest.raises(InvalidRequest, match="within=0; use 1 or more"):
        synthesize(collection, WordWriter(), tmp_path / "new.jsonl", within=0)


@pytest.mark.parametrize(
    ("written", "question"),
    [
        ("How do wings flutter at high speed?", "How do wings flutter at high speed?"),
        ('1. "What causes flutter?" It is', "What causes flutter?"),
        ("Sure, here it is:\n\nWhich proteins bind it? Which do not?", "Which proteins bind it?"),
        ("What does the passage say?", ""),
        ("Why?", ""),
        ("Wings flutter at high speed.", ""),
        ("", ""),
    ],
)
def test_a_question_is_taken_from_what_a_model_wrote(written: str, question: str) -> None:
    assert question_in(written) == question


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the extra lm is not installed")
    with pytest.raises(EncoderUnavailable, match="no GGUF file in"):
        QuestionWriter(tmp_path)


def test_out_of_memory_halves_the_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def small(_: QuestionWriter, passages: Sequence[str]) -> list[str]:
        if len(passages) > 2:
            raise torch.OutOfMemoryError("does not fit")
        return [f"what is {passage}?" for passage in passages]

    monkeypatch.setattr(QuestionWriter, "_written", small)
    writer = QuestionWriter.__new__(QuestionWriter)  # without a model
    assert writer.questions(list("abcde")) == [f"what is {letter}?" for letter in "abcde"]
    assert "out of memory: 2 passages are read at a time" in caplog.text
    monkeypatch.setattr(QuestionWriter, "_written", lambda *_: small(writer, "abc"))
    with pytest.raises(torch.OutOfMemoryError):
        writer.questions(["one"])
