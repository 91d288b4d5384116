"""Judgements as commands read and write them: a BEIR folder, or one file of query, document and grade.

    query,document,grade                                  CSV or TSV; the grade may be missing, the header too
    {"query": "…", "document": "d7", "grade": 2}          JSON lines
    q1 0 d7 2                                             TREC

A file's queries are texts, unless `queries.jsonl` (BEIR) or `queries.tsv` (id, text) lies beside it: then
they are ids. TREC's are always ids. `write_judged_data` writes what `read_judged_data` reads.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from dsearch.corpus import BeirFolder, Problems, read_queries
from dsearch.corpus.formats.beir import grade_text, write_beir_judgements
from dsearch.errors import InvalidRequest, InvalidSource, amount
from dsearch.evaluation.qrels import JudgedPair, read_judged_pairs
from dsearch.types import Query

_QUERIES = ("queries.jsonl", "queries.tsv")
_DOCUMENT = {"document", "corpus-id", "doc", "doc_id"}
_QUERY = {"query", "query-id", "query_id", "qid"}
_HEADER = {*_QUERY, *_DOCUMENT, "grade", "score"}
_ITERATION = ("0", "Q0")  # second column of TREC's judgements
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class JudgedData:
    """Queries and judged pairs of one split.

    Attributes:
        queries: in their order.
        pairs: judgements, unmerged, with their places.
    """

    queries: list[Query]
    pairs: list[JudgedPair]


def splits_of(path: str | PathLike[str]) -> list[str]:
    """Names of the splits of a BEIR folder; a file has none."""
    return [] if Path(path).is_file() else BeirFolder(path).splits()


def read_judged_data(path: str | PathLike[str], split: str, problems: Problems | None = None) -> JudgedData:
    """Read a BEIR folder's split, or all of a file.

    Args:
        path: folder or file.
        split: name of the split; a file has only one, whatever its name.
        problems: collects unreadable queries; without it the first raises.

    Raises:
        InvalidSource: no such path, a malformed judgement (file and line are named), or ids without texts.
    """
    path = Path(path)
    if not path.is_file():
        folder = BeirFolder(path)
        return JudgedData(folder.queries(problems), list(read_judged_pairs(folder.qrels_path(split))))
    written_as_json, trec = path.suffix.lower() in _JSON, _is_trec(path)
    if written_as_json:
        pairs = list(_json_pairs(path, None if problems is None else Problems(), ids=True))
    else:
        pairs = list(read_judged_pairs(path) if trec else _table_pairs(path))
    if not pairs:
        raise InvalidSource(f"{path}: no judgement; a line has query, document and, if you like, grade")
    texts = _texts_beside(path, {pair.query for pair in pairs}, problems)
    if texts is None and trec:
        raise InvalidSource(
            f"{path}: TREC's judgements name queries by id, and no file next to it has the text of one; put "
            f"the texts next to it, as {' or '.join(_QUERIES)}"
        )
    if written_as_json:  # again: a query that is no id is its own text, which a number is not
        pairs = list(_json_pairs(path, problems, ids=texts is not None))
    if texts is None:
        texts = [Query(text, text) for text in dict.fromkeys(pair.query for pair in pairs)]
    return JudgedData(texts, pairs)


def _texts_beside(path: Path, judged: Set[str], problems: Problems | None) -> list[Query] | None:
    """Queries of the file beside one of judgements that names any of the judged ones; None if there is none.

    A file of other queries, which lies in the same folder by chance, says nothing of these.
    """
    for name in _QUERIES:
        beside = path.with_name(name)
        if beside == path or not beside.is_file():
            continue
        if any(query.id in judged for query in _read_queries(beside, Problems())):
            return _read_queries(beside, problems)
    return None


def _read_queries(path: Path, problems: Problems | None) -> list[Query]:
    if path.suffix == ".jsonl":
        return read_queries(path, problems)
    return [Query(id, text) for _, (id, text, *_) in _rows(path, 2, texts=True)]


def _is_trec(path: Path) -> bool:
    """True if the first line has four columns without commas and tabs, the second `0` or `Q0`."""
    first = next((line for line in _lines(path) if line.strip()), "")
    columns = first.split()
    return "," not in first and "\t" not in first and len(columns) == 4 and columns[1] in _ITERATION


def _table_pairs(path: Path) -> Iterator[JudgedPair]:
    for place, columns in _rows(path, 2):
        if len(columns) == 4 and columns[1] in _ITERATION:  # TREC's, with tabs
            columns = [columns[0], *columns[2:]]
        if len(columns) > 3:
            raise InvalidSource(
                f"{place}: {amount(len(columns), 'column')}; a line has query, document and, if you like, "
                "grade: "
                "put a query with commas in double quotes"
            )
        yield _pair(place, columns[0], columns[1], columns[2] if len(columns) > 2 else 1)


def _json_pairs(path: Path, problems: Problems | None, *, ids: bool) -> Iterator[JudgedPair]:
    """Pairs of JSON lines; with `ids` queries are named by id, which may be a number."""
    from dsearch.corpus.formats.jsonl import json_objects

    numbered = ((number, line) for number, line in enumerate(_lines(path), start=1))
    reported = Problems(strict=True) if problems is None else problems
    for number, record in json_objects(numbered, str(path), reported):
        grade = record.get("grade", record.get("score", 1))
        query = record.get("query")
        yield _pair(f"{path}:{number}", _id(query) if ids else query, record.get("document"), grade)


def _id(value: Any) -> Any:
    """An id as a text: whole numbers stand for one, as in `queries.jsonl`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _pair(place: str, query: Any, document: Any, grade: Any) -> JudgedPair:
    document = _id(document)
    if not isinstance(query, str) or not isinstance(document, str) or not query.strip() or not document:
        raise InvalidSource(f"{place}: without query or document; each line needs both, and may have a grade")
    try:
        value = 1.0 if grade in (None, "") else float(grade)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise InvalidSource(f"{place}: grade {grade!r} is not a finite number")
    return JudgedPair(place, query.strip(), document, value)


def _rows(path: Path, columns: int, *, texts: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each row behind a header, which may be missing.

    Cells are separated by tabs if the first row has any, otherwise by the more frequent of `;` and `,`.

    With `texts` these are ids and texts of queries: the text of the first is no header, whatever it is, and
    between tabs a quote is a character like others.
    """
    start = next((line for line in _lines(path) if line.strip()), "")
    delimiter = "\t" if "\t" in start else max(";,", key=start.count)
    quoting = csv.QUOTE_NONE if texts and delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(_lines(path), delimiter=delimiter, quoting=quoting)
    first = True
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InvalidSource(f"{path}:{reader.line_num}: broken row: {error}") from error
        if row is None:
            return
        if not any(cell.strip() for cell in row):
            continue
        place = f"{path}:{reader.line_num}"
        names = [cell.strip().lower() for cell in row] if first else []
        first = False
        if names and not texts and names[0] in _DOCUMENT:
            raise InvalidSource(
                f"{place}: the first column is {names[0]!r}; put query, document, grade in order"
            )
        if texts and names and names[0] in {*_QUERY, "id", "_id"}:
            continue
        if not texts and not _HEADER.isdisjoint(names):
            continue
        if len(row) < columns:
            raise InvalidSource(
                f"{place}: one column; a line has query, document and, if you like, grade, with commas "
                "or tabs"
            )
        yield place, [cell.strip() for cell in row]


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSource(f"{path}: cannot be read as UTF-8 text: {error}") from error
    return io.StringIO(text, newline="")


TABLES = ("csv", "tsv", "jsonl")
_FORMS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".trec": "trec",
    ".qrels": "trec",
}

Judgements = Mapping[str, Mapping[str, float]]


def write_judged_data(path: str | PathLike[str], queries: Mapping[str, str], judgements: Judgements) -> None:
    """Write judgements in the format that the path names; nothing is replaced.

    Args:
        path: file of one of the suffixes, or a folder.
        queries: query id → text.
        judgements: query id → document id → grade.

    Raises:
        InvalidRequest: the path exists, its suffix is of no format, or an id cannot stand in the format.
        OSError.
    """
    path = Path(path)
    form = _FORMS.get(path.suffix.lower())
    if path.suffix and form is None:
        raise InvalidRequest(
            f"{path}: the name tells the format; end it in {', '.join(_FORMS)}, or name a folder for BEIR"
        )
    beside = (
        [path] if form != "trec" else [path, path.with_name("queries.tsv"), path.with_name("queries.jsonl")]
    )
    for each in beside:
        if each.exists():
            raise InvalidRequest(f"{each} exists; give a name that is free, in another folder if need be")
    names = {query: f"q{number}" for number, query in enumerate(judgements, start=1)}
    if form is None:
        texts = [Query(names[query], queries[query]) for query in judgements]
        write_beir_judgements(path, texts, {"train": {names[query]: of for query, of in judgements.items()}})
    elif form == "trec":
        lines = list(_trec_lines(names, judgements))
        texts_beside = "".join(
            f"{names[query]}\t{' '.join(queries[query].split())}\n" for query in judgements
        )
        path.with_name("queries.tsv").write_text(texts_beside, "utf-8")
        path.write_text("".join(lines), "utf-8")
    else:
        path.write_text(table_of(form, queries, judgements), "utf-8", newline="")


def table_of(form: str, queries: Mapping[str, str], judgements: Judgements) -> str:
    """Return judgements as text, one of `TABLES`: a line for each judged document."""
    rows = [
        (queries[query], document, grade)
        for query, of in judgements.items()
        for document, grade in of.items()
    ]
    if form == "jsonl":
        records = [{"query": text, "document": id, "grade": _plain(grade)} for text, id, grade in rows]
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    written = io.StringIO(newline="")
    table = csv.writer(written, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    table.writerow(("query", "document", "grade"))
    table.writerows((text, id, grade_text(grade)) for text, id, grade in rows)
    return written.getvalue()


def _trec_lines(names: Mapping[str, str], judgements: Judgements) -> Iterator[str]:
    for query, of in judgements.items():
        for document, grade in of.items():
            if document.split() != [document]:
                raise InvalidRequest(f"id {document!r} has white space, which TREC cannot hold; write .csv")
            yield f"{names[query]} 0 {document} {grade_text(grade)}\n"


def _plain(grade: float) -> float | int:
    return int(grade) if float(grade).is_integer() else grade
