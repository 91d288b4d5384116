"""A teacher's scores without judgements: how likely a language model finds each question, given a document.

    question <tab> document <tab> log p(question | document)

is a line of the file, as `dsearch train --objective teacher --teacher FILE` reads it: the softmax of a
question's scores is p(document | question) of documents that are equally likely before it is asked (Sachan et
al. 2022, "UPR", arXiv:2204.07496). The documents are the best that the live version finds, and its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsearch.engine import Collection
from dsearch.errors import Cancelled, InvalidRequest, InvalidSource
from dsearch.training.data.synthesis import passage_of, stored_questions, whole_lines
from dsearch.types import Progress


class Judge(Protocol):
    """Says how likely a question is, given a passage."""

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """log p(question | passage) of each (question, passage)."""
        ...


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """Likelihoods of questions, with those of earlier calls.

    Attributes:
        questions: number of questions that have scores.
        scores: number of scores.
        path: file of the scores.
    """

    questions: int
    scores: int
    path: Path


def score_questions(
    collection: Collection,
    judge: Judge,
    questions: Path,
    path: Path,
    *,
    documents: int = 4,
    batch_size: int = 8,
    on_progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> TeacherScores:
    """Write likelihoods of the questions that `synthesize` has accepted into a file, or continue to.

    Args:
        collection: searched by its live version.
        judge: a language model, as `QuestionWriter`.
        questions: file that `synthesize` wrote.
        path: file of the scores, TSV; an existing one is continued with the questions that it lacks.
        documents: number of documents that each question is scored by; more than its own.
        batch_size: pairs of question and document at a time.
        on_progress: receives the progress.
        cancelled: polled between questions.

    Raises:
        InvalidRequest: fewer than two documents, or a batch of none.
        InvalidSource: a file with other lines.
        Cancelled: between two questions; everything so far is in the file.
    """
    if documents < 2 or batch_size < 1:
        raise InvalidRequest(
            f"documents={documents}, batch_size={batch_size}; use 2 or more documents, to be told apart by "
            "a question, and a batch of 1 or more"
        )
    scored = _stored_scores(path)
    own = {line["query"]: str(line["document"]) for line in stored_questions(questions) if line["grade"]}
    remaining = [question for question in own if question not in scored]
    started = time.monotonic()
    with path.open("ab") as file:
        for done, question in enumerate(remaining):
            if cancelled is not None and cancelled():
                raise Cancelled(f"stopped after {len(scored)} questions; called again it goes on")
            lines = _scored(collection, judge, question, own[question], documents, batch_size)
            file.write(b"".join(f"{question}\t{id}\t{score:.4f}\n".encode() for id, score in lines))
            file.flush()
            if lines:
                scored[question] = len(lines)
            if on_progress is not None:
                elapsed_s = time.monotonic() - started
                on_progress(Progress("likelihoods", done + 1, len(remaining), elapsed_s))
    return TeacherScores(len(scored), sum(scored.values()), path)


def _scored(
    collection: Collection, judge: Judge, question: str, own: str, documents: int, batch_size: int
) -> list[tuple[str, float]]:
    """Log likelihoods of a question by its documents, its own included; none where that has gone."""
    [result] = collection.search_batch([question], limit=documents, operators=False)
    ids = [own, *[hit.id for hit in result.hits if hit.id != own]][:documents]
    rows = collection.store.rows_of(ids)
    if own not in rows:
        return []
    candidates = collection.store.documents([rows[id] for id in ids if id in rows])
    pairs = [(question, passage_of(document)) for document in candidates]
    scores: list[float] = []
    for start in range(0, len(pairs), batch_size):
        scores += judge.likelihoods(pairs[start : start + batch_size])
    return [(document.id, score) for document, score in zip(candidates, scores, strict=True)]


def _stored_scores(path: Path) -> dict[str, int]:
    """Number of scores of each question that an earlier call scored; one that was cut off is removed."""
    size = path.stat().st_size if path.exists() else 0
    lines = whole_lines(path)
    questions = [line.rpartition(b"\t")[0].rpartition(b"\t")[0] for line in lines]
    if not all(questions):
        raise InvalidSource(f"{path} is not a file of a teacher's scores that dsearch wrote; give another")
    if size and path.stat().st_size < size and lines:
        questions = [question for question in questions if question != questions[-1]]
        with path.open("r+b") as file:
            file.truncate(sum(len(line) + 1 for line in lines[: len(questions)]))
    return dict(Counter(question.decode() for question in questions))
