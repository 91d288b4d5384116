"""`store_files`: files that clients send become documents, read as `dsearch index` reads them.

A bad file is left out with a reason and hinders no other. Documents that a file of the same name gave before
are replaced: those of the same ids are written again, those that the file has no more are deleted, unless
some of its records could not be read. Each block of documents is durable before the next is read.

A folder keeps what became of each file, so an interrupted run goes on with the file that it had begun. A file
that was begun three times and never ended is left out: it may be what ends the process.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsearch.corpus.files import FIELD, sent_name_of
from dsearch.corpus.sent import FileBegun, FileBlock, FileEnd, ReadingEvent, SentFile, read_apart
from dsearch.engine.collection import Collection
from dsearch.engine.indexing.own_vectors import embedding_problems
from dsearch.errors import Cancelled, DsearchError, InvalidDocument, Unavailable, amount
from dsearch.results import FileResult, FilesResult, SkippedRecord
from dsearch.store import CheckedDocuments
from dsearch.store.validate import MAX_ID_BYTES
from dsearch.types import Document, Progress

SHOWN = 20  # ids and problems of a file
ATTEMPTS = 3  # to store a file
_BATCH_DOCUMENTS = 128  # of several files in one write: each of its own costs three times the processor time
_BATCH_CHARACTERS = 512 * 1024
_AT_ONCE = 1000  # names of a filter, ids of a deletion
_COUNTS = ("inserted", "updated", "unchanged", "deleted")

Holding = Callable[[], AbstractContextManager[Collection]]
OnProgress = Callable[[Progress], None]


class FilesNotStored(DsearchError):
    """Files that are not stored; `report` says which, and what became of the others."""

    def __init__(self, message: str, report: FilesResult, code: str = "invalid_source", status: int = 422):
        super().__init__(message)
        self.report, self.code, self.status = report, code, status


def store_files(
    holding: Holding,
    files: Sequence[SentFile],
    *,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> FilesResult:
    """Read files one after another and store their documents; durable and searchable on return.

    Args:
        holding: opens the collection for one write, with its encoder.
        files: the files; of two with the same name the first is stored.
        folder: keeps what became of each file, for a later call with the same files; None keeps nothing.
        on_progress: receives stage "files" after each file.
        cancelled: polled; True stops the reading.

    Raises:
        FilesNotStored: no file has a document, or the collection cannot be written to.
        Cancelled: `cancelled` returned True; what was stored stays.
    """
    journal = _Journal(folder)
    run = _Run(holding, files, journal, on_progress)
    try:
        run.leave_out_repeated_names()
        run.leave_out_after_attempts()
        if run.waiting:
            journal.begin(run.waiting[0])  # so that reading the collection counts as well
            run.learn()
            read_apart(files, run.waiting, run.take, cancelled=cancelled)
            run.flush()
    except Cancelled:
        journal.forget_attempts()
        raise
    except DsearchError as error:
        stored = len(files) - len(run.waiting)
        for number in run.waiting:
            journal.end(number, FileResult(files[number].name, f"it was not reached: {error}"))
        message = f"{error}; {stored} of {amount(len(files), 'file')} had ended, send the others again"
        raise FilesNotStored(message, run.report(), error.code, error.status) from error
    report = run.report()
    if report.left_out == len(files):
        first = report.files[0]
        raise FilesNotStored(
            f"no document in {amount(len(files), 'file')}; {first.name}: {first.reason}", report
        )
    return report


@dataclass(slots=True)
class _FileCounts:
    """What one file has given so far."""

    documents: int = 0
    ids: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    skipped: int = 0
    problems: list[SkippedRecord] = field(default_factory=list[SkippedRecord])

    def add(self, id: str, change: str) -> None:
        """Count a document that is stored."""
        self.documents += 1
        self.counts[change] += 1
        if len(self.ids) < SHOWN:
            self.ids.append(id)

    def skip(self, line: int | None, detail: str) -> None:
        """Count a record that is not stored."""
        self.skipped += 1
        if len(self.problems) < SHOWN:
            self.problems.append(SkippedRecord(line, detail))

    def result(self, name: str, reason: str) -> FileResult:
        """The file's result; `reason` is empty for one that was read to its end."""
        if self.documents and reason:
            self.skip(None, reason)
        elif not self.documents and not reason:
            reason = self.problems[0].detail if self.problems else "it holds no document"
        counts = {count: self.counts[count] for count in _COUNTS}
        return FileResult(
            name,
            None if self.documents else reason,
            self.documents,
            self.ids,
            **counts,
            skipped=self.skipped,
            problems=self.problems,
        )


class _Run:
    """One call of `store_files`; its arguments are those of the call.

    Args:
        journal: what became of the files.
    """

    def __init__(
        self,
        holding: Holding,
        files: Sequence[SentFile],
        journal: _Journal,
        on_progress: OnProgress | None,
    ):
        self._holding, self._files, self._journal, self._on_progress = holding, files, journal, on_progress
        self._started = time.monotonic()
        self._sequence = 0
        self._former: dict[str, str] = {}  # id → file name, of documents that were there before
        self._written: dict[str, int] = {}  # id → number of the file of this request that has it
        self._read: dict[int, _FileCounts] = {}  # of files that have not ended
        self._batch: list[tuple[int, Document]] = []
        self._ends: list[FileEnd] = []  # of files whose last documents are in the batch

    @property
    def waiting(self) -> list[int]:
        """Numbers of the files that have not ended, ascending."""
        return [number for number in range(len(self._files)) if number not in self._journal.results]

    def leave_out_repeated_names(self) -> None:
        """Leave out files with the name of an earlier one, whose ids their documents would have."""
        first: dict[str, int] = {}
        for number in range(len(self._files)):
            name = self._files[number].name
            if first.setdefault(name, number) != number:
                reason = "an earlier file of this request has the same name; send it under another one"
                self._journal.end(number, FileResult(name, reason))

    def leave_out_after_attempts(self) -> None:
        """Leave out a file that was begun too often."""
        for number in self.waiting[:1]:
            if self._journal.attempts[number] >= ATTEMPTS:
                reason = f"the server ended {ATTEMPTS} times while this file was read or stored; split it"
                self._journal.end(number, FileResult(self._files[number].name, reason))

    def learn(self) -> None:
        """Read which documents files of these names gave, and which of them this request has stored."""
        numbers: dict[str, int] = {}
        for number, file in enumerate(self._files):
            numbers.setdefault(file.name, number)
        names = [name for name in numbers if len(name.encode("utf-8", "replace")) <= MAX_ID_BYTES]
        with self._holding() as collection:
            self._sequence = collection.store.sequence
            for start in range(0, len(names), _AT_ONCE):
                filter = {f"{FIELD}.path": {"in": names[start : start + _AT_ONCE]}}
                for document in collection.store.export(filter):
                    name = sent_name_of(document.metadata)
                    if name is None:  # of a folder that has such a file
                        continue
                    self._former[document.id] = name
                    if numbers[name] in self._journal.results:
                        self._written[document.id] = numbers[name]

    def take(self, event: ReadingEvent) -> None:
        """Store what was read, together with what follows; alone if the file is begun again."""
        number = event.number
        if isinstance(event, FileBegun):
            self._journal.begin(number)
            self._read[number] = _FileCounts()
        elif isinstance(event, FileBlock):
            self._batch += [(number, document) for document in event.documents]
        else:
            self._ends.append(event)
        size = sum(len(document.text) for _, document in self._batch)
        alone = isinstance(event, FileEnd) and (self._journal.attempts[number] > 1 or not self._batch)
        if len(self._batch) >= _BATCH_DOCUMENTS or size >= _BATCH_CHARACTERS or alone:
            self.flush()

    def flush(self) -> None:
        """Write what was read, and note the files that have ended with it."""
        batch, self._batch = self._batch, []
        try:
            self._write(batch)
        except Unavailable:  # of an edition that a migration has replaced meanwhile
            self._write(batch)
        ends, self._ends = self._ends, []
        for end in ends:
            self._end(end)

    def report(self) -> FilesResult:
        """What became of the files."""
        files = [self._journal.results[number] for number in sorted(self._journal.results)]
        sums = {count: sum(getattr(file, count) for file in files) for count in _COUNTS}
        left_out = sum(file.reason is not None for file in files)
        return FilesResult(files, self._sequence, **sums, left_out=left_out)

    def _write(self, batch: Sequence[tuple[int, Document]]) -> None:
        checked, numbers = CheckedDocuments(), dict[str, int]()
        skipped: list[tuple[int, str]] = []
        for number, document in batch:
            other = numbers.get(document.id, self._written.get(document.id, number))
            if other != number:
                name = self._files[other].name
                skipped.append((number, f"id {document.id[:80]!r} is one of {name}, which came first"))
                continue
            try:
                checked.add(document)
                numbers[document.id] = number
            except InvalidDocument as problem:
                skipped.append((number, str(problem)))
        with self._holding() as collection:
            problems = embedding_problems(collection.store, checked)
            good = checked.without(problems)
            ids = [document.id for document in good]
            before = collection.store.rows_of(ids)
            receipt = collection.upsert(good) if good else None
        for place, problem in problems.items():
            id = checked[place].id
            skipped.append((numbers[id], f"the document (id {id[:80]!r}) {problem}"))
        for number, detail in skipped:
            self._read[number].skip(None, detail)
        if receipt is None:
            return
        self._sequence = receipt.sequence
        for id, row in zip(ids, receipt.rows, strict=True):
            self._written[id] = numbers[id]
            former = before.get(id)
            self._read[numbers[id]].add(
                id, "inserted" if former is None else "unchanged" if former == row else "updated"
            )

    def _end(self, end: FileEnd) -> None:
        read = self._read.pop(end.number, None) or _FileCounts()
        for problem in end.problems:
            read.skip(problem.line, problem.message)
        read.skipped += end.skipped - len(end.problems)
        if read.documents and not read.skipped and not end.reason:
            read.counts["deleted"] = self._delete_former(end.number)
        self._journal.end(end.number, read.result(self._files[end.number].name, end.reason))
        if self._on_progress is not None:
            done = [self._files[number].size for number in self._journal.results]
            share = sum(done) / max(1, sum(file.size for file in self._files))
            elapsed_s = time.monotonic() - self._started
            self._on_progress(Progress("files", len(done), len(self._files), elapsed_s, share))

    def _delete_former(self, number: int) -> int:
        """Delete the documents that the file of this name had and has no more; return their number."""
        name, deleted = self._files[number].name, 0
        former = [id for id, of in self._former.items() if of == name and self._written.get(id) != number]
        for start in range(0, len(former), _AT_ONCE):
            with self._holding() as collection:
                ids = [id for id in former[start : start + _AT_ONCE] if _is_of(collection, id, name)]
                if ids:
                    receipt = collection.delete(ids)
                    self._sequence, deleted = receipt.sequence, deleted + receipt.deleted
        return deleted


def _is_of(collection: Collection, id: str, name: str) -> bool:
    """True if a document still is one of a sent file of this name."""
    with suppress(DsearchError):
        return sent_name_of(collection.store.get(id).metadata) == name
    return False


class _Journal:
    """What became of each file, a line of JSON for each step.

    Nothing is synced: a line that a power cut loses stands for a file that is stored once more, to the same
    end.

    Args:
        folder: where it lies; None keeps it in memory only.

    Attributes:
        attempts: how often each file was begun.
        results: the files that have ended, by number.
    """

    def __init__(self, folder: Path | None):
        self._place = None if folder is None else folder / "files.jsonl"
        self._begun: set[int] = set()
        self.attempts: Counter[int] = Counter()
        self.results: dict[int, FileResult] = {}
        for line in self._lines():
            if "result" in line:
                problems = [SkippedRecord(**problem) for problem in line["result"].pop("problems")]
                self.results[line["file"]] = FileResult(**line["result"], problems=problems)
            else:
                self.attempts[line["file"]] += line["begun"]

    def begin(self, number: int) -> None:
        """Note that a file is begun, once until it ends."""
        if number not in self._begun:
            self._begun.add(number)
            self.attempts[number] += 1
            self._add({"file": number, "begun": 1})

    def forget_attempts(self) -> None:
        """Let the files that are begun count as not begun: they were stopped on purpose."""
        for number in self._begun:
            self._add({"file": number, "begun": -1})

    def end(self, number: int, result: FileResult) -> None:
        """Note the end of a file."""
        self.results[number] = result
        self._begun.discard(number)
        self._add({"file": number, "result": asdict(result)})

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self._place is None or not self._place.is_file():
            return
        for line in self._place.read_text().splitlines():
            with suppress(ValueError):  # blank, or cut by a kill
                yield json.loads(line)

    def _add(self, line: dict[str, Any]) -> None:
        if self._place is not None:
            with self._place.open("a") as file:
                file.write("\n" + json.dumps(line))  # behind a line that was cut, too
