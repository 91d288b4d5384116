"""Fit a query memory, and put judged queries into it without a training.

The memory (attention/memory_rows.py) needs no training: its rows are the judged queries. Four numbers are
chosen, beside the setting of the tuned search, on up to `MOST_QUERIES` queries. What they give is
cross-validated: each fold is scored with the choice of the other folds.

`remember` learns at insert time: judged queries become rows of the live version's query memory. Strength,
temperature and null level stay as the gate admitted them. Rows are operations of the collection, apart from
its versions: they are durable and shown at once, in the sequence of operations, and taken back by dropping
those after one of them. Versions that earlier releases made of insertions keep their rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from dsearch.attention.memory_rows import START_TEMPERATURE
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection
from dsearch.engine.state.remembered import JUDGEMENTS
from dsearch.errors import Conflict
from dsearch.results import MemoryResult
from dsearch.store import MemoryRow
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.gate.decision import Belief
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, drawn_parts
from dsearch.training.memory_values import GRID, MemorySetting, MemoryValues, memory_of, values_of_memories
from dsearch.training.tune import Setting, Trials, TunedSearch, head_of
from dsearch.types import query_name

MEMORY_SCOPE = "memory"  # of its record
_FOLDS = 10
_FEWEST = 20  # queries: with fewer, a slice says too little to choose by
_FIRMNESS = 0.1  # nDCG@10, summed over the queries, of a squared distance of 1 (guide decisions)


class ChosenMemory(NamedTuple):
    """A tuned setting, and the memory beside it; None: the search is better without."""

    setting: Setting
    memory: MemorySetting | None


@dataclass(frozen=True, slots=True)
class MemoryTrials:
    """Every memory of the grid beside the settings that tuning chooses, scored on the queries of `trials`.

    Attributes:
        trials: the tuned searches.
        values: of each setting with each memory, and without one.
        seen: True if another query of the examples judged a relevant document.
    """

    trials: Trials
    values: dict[tuple[Setting, MemorySetting | None], MemoryValues]
    seen: Bool[np.ndarray, " drawn"]

    @classmethod
    def of(cls, trials: Trials) -> MemoryTrials:
        """Score the grid."""
        examples = trials.examples.subset(trials.drawn.tolist())
        by_folds = [trials.choose(trials.drawn[part].tolist()).setting for part in _parts(trials)]
        settings = [*dict.fromkeys([trials.start, trials.choose().setting, *by_folds])]
        values = values_of_memories(trials.examples, trials.drawn, settings)
        times: dict[int, int] = {}
        for at in np.concatenate([at for at, _ in trials.examples.relevant]).tolist():
            times[at] = times.get(at, 0) + 1
        seen = [any(times[at] > 1 for at in of.tolist()) for of, _ in examples.relevant]
        return cls(trials, values, np.array(seen, bool))

    def choose(self, without: Sequence[int] = ()) -> ChosenMemory:
        """The best memory by all queries but those `without`, beside the setting that they choose."""
        trials = self.trials
        setting = self._scored_setting(trials.choose(without).setting)
        others = np.flatnonzero(~np.isin(trials.drawn, np.asarray(without, np.int64)))
        if len(others) < _FEWEST:
            return ChosenMemory(setting, None)
        best, gain = self._best(setting, others)
        # Among many memories some look better by luck.
        clear = gain > 0 and self._rise(setting, best, others) > 0
        return ChosenMemory(setting, best if clear else None)

    def for_head(self) -> MemorySetting:
        """The memory to serve a trained head with, where folds chose one: the best by all queries."""
        chosen = self.choose()
        every = np.arange(len(self.trials.drawn))
        return chosen.memory or self._best(chosen.setting, every)[0]

    def crossed(self) -> tuple[ChosenMemory, Answers, Answers]:
        """The choice by all queries, the answers of the start, and each fold's by what the others choose."""
        trials = self.trials
        crossed = MemoryValues(*np.zeros((4, len(trials.drawn))))
        plain = np.zeros(len(trials.drawn))
        for part in _parts(trials):
            mine = np.flatnonzero(part)
            of_fold = self.choose(trials.drawn[mine].tolist())
            for whole, part_of_it in zip(crossed, self.values[of_fold].subset(mine), strict=True):
                whole[mine] = part_of_it
            plain[mine] = self.values[of_fold.setting, None].all[mine]
        chosen = self.choose()
        if crossed.all.mean() < plain.mean():  # what the folds choose is worse than none
            chosen = chosen._replace(memory=None)
        before = self.values[trials.start, None]
        return chosen, self._answers(before), self._answers(crossed)

    def judged(
        self, gate: Gate | None = None, belief: Belief | None = None
    ) -> tuple[ChosenMemory, GateReport]:
        """The choice by all queries, and the gate's report on what folds chose for one another."""
        chosen, before, after = self.crossed()
        return chosen, judge(before, after, gate, belief=belief, seed=self.trials.seed)

    def searched(self, chosen: ChosenMemory, gate: GateReport) -> TunedSearch:
        """The tuned search with its memory, as a candidate."""
        assert chosen.memory is not None
        trials = self.trials
        tuned = trials.tuned(trials.choose()._replace(setting=chosen.setting), gate)
        head = head_of(chosen.setting, trials.examples.states.shape[1])
        head.memory = memory_of(trials.examples, chosen.memory)
        values, start = self.values[chosen], self.values[trials.start, None]
        record: dict[str, Any] = {
            **tuned.record,
            "scope": MEMORY_SCOPE,
            "examples": len(trials.examples),
            "scores": {
                "untuned": float(start.all.mean()),
                "dense": tuned.scores["dense"],
                "keyword": tuned.scores["keyword"],
                "tuned": float(self.values[chosen.setting, None].all.mean()),
                "memory": float(values.all.mean()),
            },
        }
        return replace(tuned, head=head.eval(), record=record, scores=record["scores"])

    def _best(self, setting: Setting, others: Int64[np.ndarray, " others"]) -> tuple[MemorySetting, float]:
        """The memory that gains most, and its gain: on all documents and on hidden ones together."""
        plain = self.values[setting, None].subset(others)
        unseen = ~np.isnan(plain.unseen)

        def gain(memory: MemorySetting) -> float:
            values = self.values[setting, memory].subset(others)
            whole = float((values.all - plain.all).mean())
            if unseen.sum() < _FEWEST:
                return whole
            return whole + float((values.unseen - plain.unseen)[unseen].mean())

        best = max(GRID, key=lambda memory: gain(memory) - _doubt(memory) / len(others))
        return best, gain(best)

    def _rise(self, setting: Setting, memory: MemorySetting, others: Int64[np.ndarray, " others"]) -> float:
        """The mean gain on all documents, less its standard error."""
        values, plain = (self.values[setting, of].subset(others).all for of in (memory, None))
        rise = values - plain
        return float(rise.mean() - rise.std() / np.sqrt(len(rise)))

    def _scored_setting(self, setting: Setting) -> Setting:
        """The setting, or the choice of all queries where no fold of these trials chose it."""
        return setting if (setting, None) in self.values else self.trials.choose().setting

    def _answers(self, values: MemoryValues) -> Answers:
        return Answers(values.all, self.seen, values.unseen, values.precision, values.unseen_precision)


def _doubt(memory: MemorySetting) -> float:
    """Price of a memory's squared distance from the middle of the grid."""
    strength, temperature, null_level, lending = memory
    steps = (
        math.log2(strength / 0.4),
        (temperature - 0.05) / 0.04,
        (null_level - 0.5) / 0.4,
        (lending - 0.5) / 0.5,
    )
    return _FIRMNESS * sum(step**2 for step in steps)


def _parts(trials: Trials) -> Iterator[Bool[np.ndarray, " drawn"]]:
    return drawn_parts(len(trials.drawn), _FOLDS, trials.seed, 2)


REMEMBER = "remember"  # of the record of such a version
DEFAULT = MemorySetting(0.8, START_TEMPERATURE, 0.6, 0.0)
"""Setting of a memory that no gate admitted; a few judged documents would lend to most of the others."""


def remember(
    collection: Collection,
    queries: Mapping[str, str],
    judgements: Mapping[str, Mapping[str, float]],
    *,
    accept: bool = False,
    key: str = "",
) -> MemoryResult:
    """Add judged queries to the memory of the live version; every later search has them.

    Args:
        collection: collection of the documents.
        queries: query id → text. A text that the memory has gets these grades beside its own.
        judgements: query id → document id → grade. Grades above 0 count, each divided by its query's best.
        accept: begin a memory with default settings where the live version has none, though no gate
            admitted it.
        key: who sends them: the id of an API key.

    Raises:
        InvalidRequest: no grade above 0 of a document that is there, for a query with a text.
        Conflict: the live version has no memory, or an encoder of its own; or it changed meanwhile.
    """
    _require_extensible(collection, accept)
    examples = examples_from_judgements(collection, *_by_text(queries, judgements))
    rows = judged_queries(examples, key)
    previous = _require_extensible(collection, accept)
    live = previous
    if collection.stored_head(live).memory is None:
        live = _begun(collection, live)
    sequence = collection.remembered.add(rows)
    judged = sum(len(row.grades) for row in rows)
    return MemoryResult(live, previous, len(rows), judged, examples.left_out, sequence)


def judged_queries(examples: Examples, key: str) -> list[MemoryRow]:
    """Examples as rows of the query memory."""
    rows: list[MemoryRow] = []
    for text, state, (positions, grades) in zip(
        examples.texts, examples.states, examples.relevant, strict=True
    ):
        of_documents = examples.snapshot.rows(positions).tolist()
        by_row = dict(zip(of_documents, grades.tolist(), strict=True))
        unit = state / max(float(np.linalg.norm(state)), 1e-12)
        rows.append(MemoryRow(text, unit, by_row, JUDGEMENTS, key))
    return rows


def _begun(collection: Collection, live: str) -> str:
    """Begin a memory: a version like the live one with default settings and without rows, which is live."""
    none = np.zeros(0, np.int64)
    nothing = np.zeros((0, collection.store.dimension), np.float32)
    memory = QueryMemory(
        nothing,
        nothing,
        none,
        none,
        none,
        np.zeros(0, np.float32),
        texts=[],
        strength=DEFAULT.strength,
        temperature=DEFAULT.temperature,
        null_level=DEFAULT.null_level,
        lending=DEFAULT.lending,
    )
    head = collection.stored_head(live).remembering(memory)
    version = collection.add_model(head, {"scope": REMEMBER}, parent=live)
    try:
        collection.promote(version, after=live)
    except Conflict:
        collection.delete_model(version)
        raise
    return version


def with_remembered(
    collection: Collection, queries: Mapping[str, str], judgements: Mapping[str, Mapping[str, float]]
) -> tuple[Mapping[str, str], dict[str, Mapping[str, float]]]:
    """Judged queries with those that were remembered since; one that is judged here too counts once, as here.

    Of the documents that are still there; clicks are no judgements.
    """
    names = {query_name(queries[query]) for query in judgements if query in queries}
    texts, judged = dict(queries), dict(judgements)
    rows: dict[str, tuple[str, dict[int, float]]] = {}
    for row in collection.remembered.rows():
        name = query_name(row.text)
        if row.source == JUDGEMENTS and name not in names:
            rows[name] = row.text, {**rows.get(name, ("", {}))[1], **row.grades}
    snapshot = collection.snapshot
    visible = snapshot.rows(snapshot.visible())
    taken = {*texts, *judged}
    free = (name for number in count() if (name := f"remembered {number}") not in taken)
    for text, grades in rows.values():
        documents = np.intersect1d(np.array([*grades], np.int64), visible)
        if len(documents):
            query, ids = next(free), collection.store.ids(documents)
            texts[query] = text
            judged[query] = {id: grades[row] for row, id in zip(documents.tolist(), ids, strict=True)}
    return texts, judged


def with_inserted(head: Head, memory: QueryMemory | None) -> Head:
    """The head whose memory also has the queries that were inserted into another one since it was trained."""
    if head.memory is None or memory is None or not memory.inserted.any():
        return head
    return head.remembering(head.memory.extended(memory.of_inserted()))


def _require_extensible(collection: Collection, accept: bool) -> str:
    """Return the live version if queries can be inserted into it.

    Raises:
        Conflict: it has no memory, or an encoder or documents of its own.
    """
    live = collection.live_model
    record = collection.store.model(live).record
    if "query_encoder" in record or "documents" in record:
        raise Conflict(
            f"{live}, which is live, has a query encoder of its own, whose memory only training fits; "
            "train with these judgements, or promote a version of scope head"
        )
    if "memory" not in record and not accept:
        raise Conflict(
            f"{live}, which is live, has no query memory; train one on judged queries, or accept one with "
            "default settings (--accept; accept=true over HTTP)"
        )
    return live


def _by_text(
    queries: Mapping[str, str], judgements: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Queries and judgements by the name of the text: several ids of one text are one query."""
    texts: dict[str, str] = {}
    judged: dict[str, dict[str, float]] = {}
    for query, grades in judgements.items():
        text = queries.get(query, "")
        name = query_name(text) or query
        texts.setdefault(name, text)
        judged[name] = {**judged.get(name, {}), **grades}
    return texts, judged
