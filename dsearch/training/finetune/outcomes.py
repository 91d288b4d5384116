"""`remember_outcomes`: outcomes and clicks as rows of the query memory, behind the gate of trusted queries.

    feedback → a row for each query and key → γ, τ and c → gate

Where the live version has no memory, γ, τ and c are chosen on the trusted queries, each fold by the others;
the gate compares the rankings so chosen with those of the live version. A live memory keeps its setting and
is judged with the new rows in it. No trusted query is answered by rows of the same query (cosine `ALIKE`).

If the gate passes, the rows become rows of the collection, which a rollback of rows drops again, and the
version that holds γ, τ and c goes live. If not, nothing is kept.

The grade of a document in the row of a query and key is

    grade(d) = what the key's users did with d, the best = 1      opened with profit, clicked, thumb up
             = −`LEFT`                                            an agent saw it and left it; thumb down

A key is the id of an API key, or of a client where there are no keys. However many rows a key has, they share
at most `KEY_SHARE` of a query's attention (attention/memory_rows.py).

`LEFT` = .2 was chosen on 500 simulated tasks over NFCorpus' training queries: held-out queries of three draws
rise by .0039 ± .0020, without negatives by .0024 ± .0022, with .4 by .0018 ± .0027.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection
from dsearch.engine.state.remembered import memory_of_rows
from dsearch.store import MemoryRow, Page
from dsearch.training.candidate import RowsCandidate
from dsearch.training.data.clicks import ACTIONS, ClickOptions, Propensities, Reaction, reactions_of
from dsearch.training.finetune.feedback import TrustedSlice
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, drawn_parts, joined
from dsearch.training.memory_values import MemorySetting
from dsearch.types import query_name

LEFT = 0.2
MOST_ROWS = 10_000  # of a batch; the newest


@dataclass(frozen=True, slots=True)
class GradedQuery:
    """Acts of one key on the pages of one query, graded.

    Attributes:
        text: query as it was written.
        key: id of an API key, or of a client.
        grades: document → grade, the best 1, below 0 for what was left.
        shown_s: time of its newest page, in seconds since 1970.
    """

    text: str
    key: str
    grades: Mapping[str, float]
    shown_s: float


def graded_queries(
    pages: Iterable[Page], propensities: Propensities, options: ClickOptions | None = None
) -> tuple[list[GradedQuery], dict[str, int]]:
    """Rows of all pages, the newest first; and how many were left out, by reason."""
    options = options or ClickOptions()
    left_out: Counter[str] = Counter()
    pages = list(pages)
    newest: dict[tuple[str, str], tuple[float, str]] = {}
    for page in pages:
        impression = page.impression
        for key in {event.key for event in page.events}:
            at = query_name(impression.query), key
            newest[at] = max(newest.get(at, (impression.shown_s, "")), (impression.shown_s, impression.query))
    graded: list[GradedQuery] = []
    for name, documents in reactions_of(pages, propensities, options.clip, left_out).items():
        for key in sorted({key for keys in documents.values() for key in keys}):
            grades = _grades({id: keys[key] for id, keys in documents.items() if key in keys})
            if grades:
                shown_s, text = newest[name, key]
                graded.append(GradedQuery(text, key, grades, shown_s))
    graded.sort(key=lambda row: (-row.shown_s, row.key, row.text))
    left_out["queries of an older date than the newest of a batch"] += max(len(graded) - MOST_ROWS, 0)
    return graded[:MOST_ROWS], {why: n for why, n in left_out.items() if n}


def _grades(documents: Mapping[str, Reaction]) -> dict[str, float]:
    """Grades by one key; empty if nothing was of use."""
    liked: dict[str, float] = {}
    for id, acts in documents.items():
        worth = acts.mass if acts.profit is None else acts.profit * acts.mass / max(acts.clicks, 1)
        worth = max(worth, ACTIONS["thumbs_up"].grade) if acts.up > 0 else worth
        if worth > 0 and acts.up >= 0:
            liked[id] = worth
    if not liked:
        return {}
    best = max(liked.values())
    left = {id: -LEFT for id, acts in documents.items() if acts.up < 0 or acts.profit == 0}
    return {**left, **{id: worth / best for id, worth in liked.items()}}


SCOPE = "outcomes"  # of the record of such a version
SOURCE = "clicks"  # of its rows
# Small: on a few hundred trusted queries most of the differences between settings are chance.
GRID = [
    MemorySetting(strength, 0.07, null_level) for strength in (0.1, 0.2, 0.4) for null_level in (0.5, 0.7)
]
_CAREFUL = MemorySetting(0.2, 0.07, 0.5)  # where too few queries are trusted to choose by
_FOLDS = 10
_SAME = 1 - 1e-5  # cosine of two embeddings of one text
_FEWEST = 20  # trusted queries to choose by


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeMemory(RowsCandidate):
    """Rows that outcomes and clicks are worth, and the gate's report on them.

    Attributes:
        with_rows: what was judged: the live version's head with the rows.
        gate: report of the gate.
    """

    with_rows: Head
    gate: GateReport


def rows_of_feedback(
    collection: Collection, pages: Sequence[Page], propensities: Propensities
) -> tuple[list[MemoryRow], dict[str, int]]:
    """Rows of feedback that the collection does not have yet, and how many were left out, by reason."""
    graded, left_out = graded_queries(pages, propensities)
    snapshot = collection.snapshot
    rows_of = collection.store.rows_of(sorted({id for query in graded for id in query.grades}))
    numbers = np.array([*rows_of.values()], np.int64)
    here = dict(zip(rows_of, (snapshot.positions_of(numbers) >= 0).tolist(), strict=True))
    texts = list(dict.fromkeys(query.text for query in graded))
    before = [row for row in collection.remembered.rows() if row.source == SOURCE]
    states = dict(zip(texts, _states(collection, texts, before), strict=True))
    rows: list[MemoryRow] = []
    for query in graded:
        grades = {rows_of[id]: grade for id, grade in query.grades.items() if here.get(id, False)}
        if any(grade > 0 for grade in grades.values()):
            rows.append(MemoryRow("", states[query.text], grades, SOURCE, query.key))
    grades_before = {(row.key, row.state.tobytes()): row.grades for row in before}
    return [row for row in rows if grades_before.get((row.key, row.state.tobytes())) != row.grades], left_out


def remember_outcomes(
    collection: Collection,
    rows: list[MemoryRow],
    trusted: TrustedSlice,
    *,
    gate: Gate | None = None,
    left_out: Mapping[str, int] | None = None,
    seed: int = 0,
) -> OutcomeMemory | None:
    """Choose a memory for the rows and judge it by trusted queries; None if there is nothing to judge.

    Args:
        collection: collection of the feedback; its live version is compared with.
        rows: rows of feedback.
        trusted: queries to choose and to judge by.
        gate: requirements.
        left_out: number of queries that gave no row, by reason.
        seed: random seed of the folds.
    """
    started = time.monotonic()
    live = collection.live_model
    now = collection.head(live)
    begins = now.memory is None
    every = [*collection.remembered.rows(), *rows] if begins else rows
    memory = memory_of_rows(collection.store, every, QueryMemory)
    if memory is None or not rows:
        return None
    (before,) = trusted.answers([now])
    if now.memory is not None:
        setting = MemorySetting(*now.memory.setting)
        with_rows = now.remembering(now.memory.extended(memory)).settle()
        (after,) = trusted.answers([with_rows])
    else:
        heads = [now.remembering(memory.with_setting(*of)).settle() for of in GRID]
        setting, after = _crossed(before, trusted.answers(heads), seed)
        with_rows = heads[GRID.index(setting)]
    report = judge(before, after, gate, need_slices=False, seed=seed)
    report = trusted.bounded(report, now, with_rows)
    record = {
        "scope": SCOPE,
        "live": live,
        "examples": len(rows),
        "keys": len({row.key for row in rows}),
        "left_out": dict(left_out or {}),
        "trusted_queries": len(before),
        "setting": setting._asdict() if begins else None,
        "gate": report.to_dict(),
        "seconds": round(time.monotonic() - started, 2),
    }
    return OutcomeMemory(rows=rows, record=record, with_rows=with_rows, gate=report)


def remember_rows(collection: Collection, rows: Sequence[MemoryRow], record: Mapping[str, Any]) -> str | None:
    """Let rows answer that passed the gate; the version, or None if another one is live by now.

    Args:
        collection: collection of the model.
        rows: rows to be written.
        record: record of their `OutcomeMemory`.
    """
    live = collection.live_model
    if record["live"] != live:
        return None
    head = collection.stored_head(live)
    if record["setting"] is not None:
        head = head.remembering(_without_rows(head.encoder_dim, MemorySetting(**record["setting"])))
    version = collection.add_model(head, dict(record), parent=live)
    collection.promote(version, after=live)
    collection.remembered.add(rows)
    return version


def _crossed(before: Answers, values: Sequence[Answers], seed: int) -> tuple[MemorySetting, Answers]:
    """The setting by all queries, and answers in which each fold has what the others choose."""
    gains = np.stack([of.evidence - before.evidence for of in values])
    parts, queries = [before.subset(np.zeros(0, np.int64))], [np.zeros(0, np.int64)]
    for mine in drawn_parts(len(before), _FOLDS, seed, 3):
        queries.append(np.flatnonzero(mine))
        parts.append(values[_best(gains[:, ~mine])].subset(queries[-1]))
    order = np.argsort(np.concatenate(queries))
    return GRID[_best(gains)], joined(parts).subset(order)


def _best(gains: Float[np.ndarray, "settings queries"]) -> int:
    """The setting with the largest gain less its standard error."""
    if gains.shape[1] < _FEWEST:
        return GRID.index(_CAREFUL)
    return int((gains.mean(1) - gains.std(1) / np.sqrt(gains.shape[1])).argmax())


def _without_rows(dimension: int, setting: MemorySetting) -> QueryMemory:
    """A memory of this setting without rows, to which those of the collection are added."""
    none = np.zeros(0, np.int64)
    nothing = np.zeros((0, dimension), np.float32)
    empty = QueryMemory(nothing, nothing, none, none, none, np.zeros(0, np.float32), texts=[])
    return empty.with_setting(*setting)


def _states(
    collection: Collection, texts: Sequence[str], before: Sequence[MemoryRow]
) -> Float32[np.ndarray, "texts encoder_dim"]:
    """Embeddings of unit length; that of an earlier row of the same text, which another batch gave."""
    states = collection.encoder.encode_queries(list(texts))
    states = (states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    if before and len(states):
        earlier = np.unique(np.stack([row.state for row in before]), axis=0)
        cosines = states @ earlier.T
        same = cosines.max(1) >= _SAME
        states[same] = earlier[cosines.argmax(1)[same]]
    return states
