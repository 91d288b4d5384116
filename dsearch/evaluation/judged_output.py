"""Write judgements to a file or a BEIR folder, so that `dsearch.evaluation.judged_data` reads them again.

.csv .tsv         query,document,grade; queries are texts
.jsonl .ndjson    {"query": "…", "document": "d7", "grade": 2}
.trec .qrels      q1 0 d7 2, with the texts beside it in queries.tsv
a folder          BEIR: queries.jsonl, qrels/train.tsv
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

from dsearch.corpus.formats.beir import grade_text, write_beir_judgements
from dsearch.errors import InvalidRequest
from dsearch.types import Query

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
        texts_beside = "".join(f"{names[query]}\t{_on_a_line(queries[query])}\n" for query in judgements)
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


def _on_a_line(text: str) -> str:
    return " ".join(text.split())


def _plain(grade: float) -> float | int:
    return int(grade) if float(grade).is_integer() else grade
