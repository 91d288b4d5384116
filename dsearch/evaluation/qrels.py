"""Relevance judgements: reading, leaving out pairs, and separating seen from unseen queries.

`read_rows` reads any small column file (qrels, runs, pairs), with errors that name file and line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

from dsearch.errors import InvalidSource, amount

Qrels: TypeAlias = dict[str, dict[str, float]]
"""Query id → {document id: grade}; a grade above 0 is relevant, and the higher the better."""

Pairs: TypeAlias = dict[str, set[str]]
"""Query id → document ids: pairs to exclude."""


def read_qrels(path: str | PathLike[str], on_problem: Callable[[str], None] | None = None) -> Qrels:
    """Read judgements: BEIR (`query-id corpus-id score`, with or without header) or TREC (`query 0 document
    grade`).

    A repeated pair with the same grade counts once and is reported to `on_problem`, as "file:line: problem".

    Raises:
        InvalidSource: not readable, not UTF-8, a line with other than 3 or 4 columns, an empty id, a grade
            that is not a finite number, or one pair with two different grades; file and line are named.
    """
    return merged_pairs(read_judged_pairs(path), on_problem)


def merged_pairs(pairs: Iterable[JudgedPair], on_problem: Callable[[str], None] | None = None) -> Qrels:
    """Merge judged pairs; otherwise as `read_qrels`.

    Raises:
        InvalidSource: one pair with two different grades; both places are named.
    """
    qrels: Qrels = {}
    for place, query, document, grade in pairs:
        grades = qrels.setdefault(query, {})
        if document not in grades:
            grades[document] = grade
        elif grades[document] != grade:
            raise InvalidSource(
                f"{place}: query {query!r} and document {document!r} are judged {grade:g} here and "
                f"{grades[document]:g} before; keep one of the two lines"
            )
        elif on_problem is not None:
            on_problem(f"{place}: query {query!r} and document {document!r} stand here twice; counted once")
    return qrels


class JudgedPair(NamedTuple):
    """One line of judgements, with its place "file:line"."""

    place: str
    query: str
    document: str
    grade: float


def read_judged_pairs(path: str | PathLike[str]) -> Iterator[JudgedPair]:
    """Yield the lines of a file of judgements, unmerged; `read_qrels` merges them.

    Raises:
        InvalidSource: as for `read_qrels`, except for repeated pairs.
    """
    for index, (place, columns) in enumerate(read_rows(path, "qrels file")):
        if len(columns) not in (3, 4):
            raise InvalidSource(
                f"{place}: {amount(len(columns), 'column')}; judgements have 3 (query, document, grade) or "
                "TREC's 4 "
                "(query, iteration, document, grade), separated by tabs"
            )
        if index == 0 and _is_header(columns):
            continue
        query, document, grade = columns[0], columns[-2], _number(columns[-1])
        if grade is None:
            raise InvalidSource(f"{place}: grade {columns[-1]!r} is not a finite number")
        if not query or not document:
            raise InvalidSource(f"{place}: empty query id or document id")
        yield JudgedPair(place, query, document, grade)


def read_pairs(path: str | PathLike[str]) -> Pairs:
    """Read pairs to exclude: two columns, query id and document id, with or without the header
    `query-id`.

    Raises:
        InvalidSource: not readable, not UTF-8, a line with other than 2 columns or an empty id.
    """
    pairs: Pairs = {}
    for index, (place, columns) in enumerate(read_rows(path, "file of pairs")):
        if len(columns) != 2 or not all(columns):
            raise InvalidSource(
                f"{place}: {columns}; a pair is two columns, query id and document id, with a tab between"
            )
        query, document = columns
        if index == 0 and _is_header(columns):
            continue
        pairs.setdefault(query, set()).add(document)
    return pairs


def without_pairs(
    qrels: Mapping[str, Mapping[str, float]], exclude: Mapping[str, Collection[str]] | None
) -> Qrels:
    """Copy `qrels` without the pairs in `exclude`; queries stay, even if empty."""
    exclude = exclude or {}
    remaining: Qrels = {}
    for query, judged in qrels.items():
        left_out = exclude.get(query, ())
        remaining[query] = {document: grade for document, grade in judged.items() if document not in left_out}
    return remaining


def without_positives(qrels: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the queries without a relevant document, for which no measure is defined."""
    return [query for query, judged in qrels.items() if not any(grade > 0 for grade in judged.values())]


def seen_documents(train_qrels: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return the documents that are relevant (grade above 0) to a training query."""
    return {document for judged in train_qrels.values() for document, grade in judged.items() if grade > 0}


def split_seen(
    test_qrels: Mapping[str, Mapping[str, float]], train_qrels: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], list[str]]:
    """Return the ids of seen and of unseen test queries, each in the order of `test_qrels`.

    A query is *seen* when a document relevant to it is also relevant to a training query, otherwise
    *unseen*. Queries without any relevant document are in neither.
    """
    trained = seen_documents(train_qrels)
    seen: list[str] = []
    unseen: list[str] = []
    for query, judged in test_qrels.items():
        relevant = {document for document, grade in judged.items() if grade > 0}
        if relevant:
            (seen if relevant & trained else unseen).append(query)
    return seen, unseen


def _is_header(columns: list[str]) -> bool:
    return columns[0].lower().replace("_", "-") in ("query-id", "queryid", "qid", "query")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Row(NamedTuple):
    """A non-blank line: its place and its columns."""

    place: str
    columns: list[str]


def read_rows(path: str | PathLike[str], what: str) -> Iterator[Row]:
    """Yield the non-blank lines of a UTF-8 file, split at tabs if there are any, else at blanks.

    Splitting at tabs keeps ids with blanks intact. `what` names the kind of file in errors.

    Raises:
        InvalidSource: the file does not exist, is a folder, or a line of it is not UTF-8.
    """
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidSource(f"{path}: no {what} there that can be read ({error.strerror})") from error
    with file:
        for number, raw in enumerate(file, start=1):
            place = f"{path}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InvalidSource(f"{place}: byte {error.start + 1} is not UTF-8; save as UTF-8") from error
            if line.strip():
                cut = line.split("\t") if "\t" in line else line.split()
                yield Row(place, [column.strip() for column in cut])
