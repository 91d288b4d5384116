"""Relevance judgements and runs: their files, pairs to leave out, seen and unseen queries, folds.

`read_rows` reads any small column file (qrels, runs, pairs), with errors that name file and line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from dsearch.errors import InvalidRequest, InvalidSource, amount

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


class Fold(NamedTuple):
    """One turn of cross-validation: trained on the other folds' judgements, tested on this one's."""

    number: int
    train: Qrels
    test: Qrels


def read_folds(path: str | PathLike[str]) -> dict[str, int]:
    """Query id → fold, from `{"folds": {"q1": 0, …}}` or the bare mapping.

    Raises:
        InvalidSource: not readable, not JSON, or not such a mapping to whole numbers from 0.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSource(f"{path}: no file of folds there that can be read ({error.strerror})") from error
    except ValueError as error:
        raise InvalidSource(f"{path}: not JSON in UTF-8 ({error})") from error
    folds = content.get("folds", content) if isinstance(content, dict) else None
    if not isinstance(folds, dict) or not folds:
        raise InvalidSource(f'{path}: folds are {{"query id": fold, …}}, bare or under the key "folds"')
    for query, fold in folds.items():
        if not isinstance(fold, int) or isinstance(fold, bool) or fold < 0:
            raise InvalidSource(f"{path}: fold {fold!r} of query {query!r} is not a whole number from 0")
    return folds


def cross_validation(qrels: Mapping[str, Mapping[str, float]], folds: Mapping[str, int]) -> Iterator[Fold]:
    """Yield each fold, ascending; together their tests contain every judged query once.

    Raises:
        InvalidSource: a judged query is in no fold, or all are in the same.
    """
    homeless = [query for query in qrels if query not in folds]
    if homeless:
        raise InvalidSource(
            f"{len(homeless)} of {len(qrels)} judged queries are in no fold, such as {homeless[0]!r}; "
            "the file of folds must name every judged query"
        )
    numbers = sorted({folds[query] for query in qrels})
    if len(numbers) < 2:
        raise InvalidSource(
            f"one fold has every judged query ({len(qrels)}); cross-validation needs two or more"
        )
    for number in numbers:
        parts: tuple[Qrels, Qrels] = ({}, {})
        for query, judged in qrels.items():
            parts[folds[query] == number][query] = dict(judged)
        yield Fold(number, train=parts[0], test=parts[1])


Run: TypeAlias = dict[str, list[tuple[str, float]]]
"""Query id → (document id, score) in rank order, best first."""


def write_trec(
    run: Mapping[str, Sequence[tuple[str, float]]], path: str | PathLike[str], tag: str = "dsearch"
) -> None:
    """Write `query Q0 document rank score tag` lines whose scores fall strictly with the rank.

    trec_eval ignores the rank column: it sorts by the score in single precision and breaks ties by id. So
    each score is rounded to float32, lowered below its predecessor if necessary, and written with the digits
    that float32 needs. The order of `run` takes precedence over its scores.

    Raises:
        InvalidRequest: an id or the tag is empty or contains blanks (the format has no way to write them), a
            document stands twice under one query, or a score is not finite in single precision. Nothing is
            written then.
    """
    _writable("tag", tag)
    lines: list[str] = []
    for query, ranking in run.items():
        _writable("query id", query)
        documents = [document for document, _ in ranking]
        if len(set(documents)) != len(documents):
            raise InvalidRequest(
                f"query {query!r}: a document is ranked twice; a run ranks each at most once"
            )
        scores = strictly_decreasing([score for _, score in ranking], query)
        for rank, (document, score) in enumerate(zip(documents, scores, strict=True), start=1):
            _writable("document id", document)
            lines.append(f"{query} Q0 {document} {rank} {score} {tag}\n")
    Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")


def strictly_decreasing(scores: Sequence[float], query: str = "") -> list[np.float32]:
    """Round `scores` to single precision, and lower each below its predecessor if necessary.

    Raises:
        InvalidRequest: a score is NaN or beyond ±3.4e38.
    """
    lowered: list[np.float32] = []
    limit = np.float32(np.inf)
    for rank, score in enumerate(scores, start=1):
        with np.errstate(over="ignore"):
            single = np.float32(score)
        value = min(single, limit)
        if not (np.isfinite(single) and np.isfinite(value)):
            raise InvalidRequest(f"query {query!r}, rank {rank}: score {score} is not a finite float32")
        lowered.append(value)
        with np.errstate(over="ignore", under="ignore"):
            limit = np.nextafter(value, np.float32(-np.inf))
    return lowered


def read_trec(path: str | PathLike[str]) -> Run:
    """Read a TREC run; like trec_eval, by falling score and, among equal scores, by falling document id.

    Raises:
        InvalidSource: not readable, not UTF-8, a line without 6 columns, a score that is not a finite
            number, or a document twice under one query; file and line are named.
    """
    scores: dict[str, dict[str, float]] = {}
    for place, columns in read_rows(path, "run file"):
        if len(columns) != 6:
            raise InvalidSource(
                f"{place}: {amount(len(columns), 'column')}; a run has 6: query Q0 document rank score tag"
            )
        query, _, document, _, text, _ = columns
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InvalidSource(f"{place}: score {text!r} is not a finite number")
        if document in scores.setdefault(query, {}):
            raise InvalidSource(f"{place}: document {document!r} stands twice under query {query!r}")
        scores[query][document] = score
    return {
        query: sorted(scored.items(), key=lambda item: (item[1], item[0]), reverse=True)
        for query, scored in scores.items()
    }


def _writable(name: str, text: str) -> None:
    if text.split() != [text]:
        raise InvalidRequest(
            f"{name} {text!r} cannot stand in a TREC run: its columns are separated by blanks; "
            "use ids that are not empty and have no blanks"
        )
