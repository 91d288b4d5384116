"""Validate training data before use: every unusable line is named and counted.

duplicate pairs               the same judgement twice; counts once
contradictions                the same pair with two grades; left out, because the right one is unknown
unknown documents             judged, but not in the collection; left out
queries without text          judged, but not in the file of queries, or empty there; left out
queries without a positive    no relevant document in the collection; left out
unreadable queries            malformed lines of the file of queries, or repeated ids
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsearch.corpus import Problems
from dsearch.engine import Collection
from dsearch.errors import InvalidSource
from dsearch.evaluation import JudgedPair, Qrels
from dsearch.evaluation.judged_data import read_judged_data

SHOWN = 20
_UNREADABLE = "unreadable queries"


@dataclass(slots=True)
class DataReport:
    """Problems of training data: counts by kind, and the first places, as "file:line: what"."""

    counts: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, kind: str, message: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        if len(self.places) < SHOWN:
            self.places.append(message)

    def to_text(self) -> str:
        """For a terminal; empty when nothing is wrong."""
        if not self.counts:
            return ""
        counted = ", ".join(f"{kind}: {count}" for kind, count in sorted(self.counts.items()))
        more = sum(self.counts.values()) - len(self.places)
        lines = [*self.places, *([f"… and {more} more"] if more > 0 else []), f"left out: {counted}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckedData:
    """Queries and judgements without those that contradict each other, and what is wrong with the rest."""

    queries: dict[str, str]
    qrels: Qrels
    report: DataReport


def checked_judgements(
    collection: Collection, folder: Path, split: str, *, strict: bool = False
) -> CheckedData:
    """Read judgements and hold them against the collection.

    Args:
        collection: collection of the judged documents.
        folder: a BEIR folder, or a file of judgements; see `dsearch.evaluation.judged_data`.
        split: split of the folder's judgements.
        strict: refuse data with anything wrong in it.

    Raises:
        InvalidSource: a file is missing or malformed; with `strict`, anything is wrong: the first places and
            the counts are named.
    """
    report, problems = DataReport(), Problems(keep=SHOWN)
    data = read_judged_data(folder, split, problems)
    queries = {query.id: query.text for query in data.queries}
    for problem in problems.first:
        report.add(_UNREADABLE, str(problem))
    if problems.count:
        report.counts[_UNREADABLE] = problems.count
    qrels, sound = _put_together(data.pairs, report)
    _check_against(collection, queries, qrels, sound, report)
    if strict and report.counts:
        raise InvalidSource(f"the data is not sound (--strict):\n{report.to_text()}")
    return CheckedData(queries, qrels, report)


def _put_together(pairs: Iterable[JudgedPair], report: DataReport) -> tuple[Qrels, list[JudgedPair]]:
    """Judgements without contradictions, and the first line of each."""
    first: dict[tuple[str, str], JudgedPair] = {}
    contradicted: set[tuple[str, str]] = set()
    for pair in pairs:
        key = (pair.query, pair.document)
        before = first.setdefault(key, pair)
        if before is pair:
            continue
        named = f"query {pair.query!r} and document {pair.document!r}"
        if before.grade == pair.grade:
            report.add("duplicate pairs", f"{pair.place}: {named} stand here again; counted once")
        else:
            line = before.place.rpartition(":")[2]
            report.add(
                "contradictions",
                f"{pair.place}: {named} are judged {pair.grade:g} here and {before.grade:g} in line {line}; "
                "left out",
            )
            contradicted.add(key)
    qrels: Qrels = {}
    sound = [pair for key, pair in first.items() if key not in contradicted]
    for pair in first.values():
        qrels.setdefault(pair.query, {})
    for pair in sound:
        qrels[pair.query][pair.document] = pair.grade
    return qrels, sound


def _check_against(
    collection: Collection,
    queries: Mapping[str, str],
    qrels: Qrels,
    sound: list[JudgedPair],
    report: DataReport,
) -> None:
    rows = collection.store.rows_of(sorted({pair.document for pair in sound}))
    answered = {pair.query for pair in sound if pair.grade > 0 and pair.document in rows}
    reported: set[str] = set()
    for pair in sound:
        if pair.document not in rows:
            report.add(
                "unknown documents",
                f"{pair.place}: document {pair.document!r} is not in collection {collection.name!r}",
            )
        if pair.query in reported:
            continue
        reported.add(pair.query)
        if not queries.get(pair.query, "").strip():
            report.add(
                "queries without text", f"{pair.place}: query {pair.query!r} has no text among the queries"
            )
        elif pair.query not in answered:
            report.add("queries without a positive", f"{pair.place}: nothing answers query {pair.query!r}")
    for query in sorted(qrels.keys() - reported):  # all that was said of it is contradictory
        report.add(
            "queries without a positive", f"nothing answers query {query!r}: its judgements contradict"
        )
