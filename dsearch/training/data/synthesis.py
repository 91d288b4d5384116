"""Questions out of documents: a language model writes them, the search keeps those that find their document.

    {"query": "…", "document": "d7", "grade": 1, "rank": 1}

is a line of the file: a judgement, from which `dsearch train --data FILE` learns. A question that finds its
document among the best few has grade 1; any other has grade 0 and teaches nothing (round-trip filter: Alberti
et al. 2019, arXiv:1906.05416; Dai et al. 2022, "Promptagator", arXiv:2209.11755).

The order of documents depends on the seed alone, and a document is written down as soon as its question is
judged. A further call continues with documents that are not in the file, whatever ended the one before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from dsearch.engine import Collection
from dsearch.errors import Cancelled, InvalidRequest, InvalidSource, amount
from dsearch.types import Document, Progress

LEAST_CHARACTERS = 80  # a shorter text is a title, which a question would repeat
NO_QUESTION = "(no question)"
_PAGE = 1000


class Writer(Protocol):
    """Writes questions."""

    def questions(self, passages: Sequence[str]) -> list[str]:
        """One question for each passage; "" where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """Questions of a collection, with those of earlier calls.

    Attributes:
        documents: number of documents that the model has read.
        questions: number of questions that it has written.
        accepted: number of questions that find their document.
        path: file of the judgements.
    """

    documents: int
    questions: int
    accepted: int
    path: Path


def synthesize(
    collection: Collection,
    writer: Writer,
    path: Path,
    *,
    documents: int = 200,
    within: int = 3,
    batch_size: int = 8,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> SynthesisResult:
    """Write questions for documents of a collection into a file of judgements, or continue to.

    Args:
        collection: searched by its live version.
        writer: writes the questions.
        path: file, JSON lines; an existing one is continued.
        documents: number of documents to read in all, drawn at random; fewer where there are not as many.
        within: rank, from 1, up to which a question has to find its document.
        batch_size: documents at a time: as much work an interruption loses.
        seed: random seed of the draw.
        on_progress: receives the progress.
        cancelled: polled between batches.

    Raises:
        InvalidRequest: a number below 1.
        InvalidSource: the file has other lines, or those of another collection.
        Cancelled: between two batches; everything so far is in the file.
    """
    for name, value in (("documents", documents), ("within", within), ("batch_size", batch_size)):
        if value < 1:
            raise InvalidRequest(f"{name}={value}; use 1 or more")
    lines = stored_questions(path)
    drawn = _drawn(collection, seed)
    done = {str(line["document"]) for line in lines}
    if done and not done & set(drawn):
        raise InvalidSource(f"{path} has questions of another collection; give another file")
    remaining = [id for id in drawn if id not in done][: max(0, documents - len(lines))]
    started = time.monotonic()
    with path.open("ab") as file:
        for start in range(0, len(remaining), batch_size):
            if cancelled is not None and cancelled():
                raise Cancelled(f"stopped after {amount(len(lines), 'document')}; called again it goes on")
            judged = _judged(collection, writer, remaining[start : start + batch_size], within)
            file.write(b"".join(orjson.dumps(line) + b"\n" for line in judged))
            file.flush()
            lines += judged
            if on_progress is not None:
                done_now = min(start + batch_size, len(remaining))
                elapsed_s = time.monotonic() - started
                on_progress(Progress("questions", done_now, len(remaining), elapsed_s))
    written = sum(1 for line in lines if line["query"] != NO_QUESTION)
    return SynthesisResult(len(lines), written, sum(1 for line in lines if line["grade"]), path)


def _judged(collection: Collection, writer: Writer, ids: Sequence[str], within: int) -> list[dict[str, Any]]:
    """A line for each document that is still there."""
    rows = collection.store.rows_of(ids)
    documents = collection.store.documents([rows[id] for id in ids if id in rows])
    questions = [
        text.strip() or NO_QUESTION
        for text in writer.questions([passage_of(document) for document in documents])
    ]
    results = collection.search_batch(questions, limit=within, operators=False)
    lines: list[dict[str, Any]] = []
    for document, question, result in zip(documents, questions, results, strict=True):
        ids_in_order = [hit.id for hit in result.hits]
        rank = ids_in_order.index(document.id) + 1 if document.id in ids_in_order else 0
        passes = rank > 0 and question != NO_QUESTION
        lines.append({"query": question, "document": document.id, "grade": int(passes), "rank": rank})
    return lines


def _drawn(collection: Collection, seed: int) -> list[str]:
    """Ids of all documents with a text that is long enough, in a random order."""
    ids: list[str] = []
    after = None
    while page := collection.store.list(after, _PAGE):
        after = page[-1].id
        ids += [document.id for document in page if len(document.text) >= LEAST_CHARACTERS]
    random.Random(seed).shuffle(ids)
    return ids


def passage_of(document: Document) -> str:
    """A document as the language model reads it."""
    return f"{document.title}\n{document.text}" if document.title else document.text


def stored_questions(path: Path) -> list[dict[str, Any]]:
    """The lines of an earlier call, as dicts of query, document, grade and rank.

    Raises:
        InvalidSource: the file has other lines.
    """
    try:
        lines = [orjson.loads(line) for line in whole_lines(path)]
        if all({"query", "document", "grade", "rank"} <= line.keys() for line in lines):
            return lines
    except (ValueError, AttributeError):
        pass
    raise InvalidSource(f"{path} is not a file of questions that dsearch synthesize wrote; give another")


def whole_lines(path: Path) -> list[bytes]:
    """The lines that earlier calls wrote, none if there is no file; one that was cut off is removed."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.splitlines()
