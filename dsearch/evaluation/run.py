"""Runs: the ranking of a system for each query, and the TREC file format for external evaluators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np

from dsearch.errors import InvalidRequest, InvalidSource, amount
from dsearch.evaluation.qrels import read_rows

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
