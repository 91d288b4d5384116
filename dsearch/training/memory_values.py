"""Values of judged queries with every query memory of a grid, each answered without its own row.

Values are nDCG@10, by which memories are chosen, and average precision, by which the gate judges them.

Unseen documents are a matter of design, not of luck: every judged document is hidden in exactly one of five
rounds, with all documents of the same embedding. A round's memory knows no grade of its hidden documents. The
unseen score of a query is that of its hidden documents, where its other relevant ones are taken out of
ranking and judgements.

Rankings are those of a pool for each query: the best documents of the searches that are compared, those that
the memory raises most, and the relevant ones (the best 200 of them).

Each query is answered as if its own row had never been stored. Leaving the row out of the attention is not
enough: a document that no other query judged would count as judged, and borrow nothing. Without the row it
borrows from its neighbours, as every document without a judgement does. Where few queries share documents,
that hid most of what a memory brings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention.arrays import unit
from dsearch.attention.memory_rows import LENDING, LENDING_LEVEL, NEIGHBOURS
from dsearch.attention.retrieval.memory import ALIKE, QueryMemory
from dsearch.engine import Snapshot
from dsearch.engine.ranking.memory import SnapshotMemory, nearest_judged
from dsearch.evaluation.metrics import JudgedQuery, average_precision, ndcg
from dsearch.products import product
from dsearch.training.data.examples import Examples
from dsearch.training.gate.held_out import episodes_of
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import DEPTH, EVIDENCE_DEPTH, Relevant, padded
from dsearch.training.tune import Setting, head_of

_NEAREST = 64  # judged documents kept for each of a pool: some are hidden, or judged by one query alone
_AT_A_TIME = 8192  # documents of a pool


class PoolLending:
    """The judged documents that documents of some pools may borrow from.

    Args:
        memory: past queries; a memory that is asked about later has a part of its judged documents.
        snapshot: the documents.
        pool: positions of each query's documents, −1 = none.
    """

    def __init__(self, memory: QueryMemory, snapshot: Snapshot, pool: Int64[np.ndarray, "queries pool"]):
        self._snapshot, self._pool = snapshot, pool
        self._documents, self._places = np.unique(np.maximum(pool, 0), return_inverse=True)
        self._places = self._places.reshape(pool.shape)
        judged_at = snapshot.positions_of(memory.rows.numpy())
        near: list[np.ndarray] = []
        similar: list[np.ndarray] = []
        for start in range(0, len(self._documents), _AT_A_TIME):
            part = self._documents[start : start + _AT_A_TIME]
            numbers, cosines = nearest_judged(memory, snapshot.embeddings(part[None])[0], _NEAREST)
            near.append(judged_at[numbers])
            similar.append(cosines)
        self._near = np.concatenate(near)
        self._lending = np.exp((np.concatenate(similar) - LENDING_LEVEL) / LENDING)

    def without_own(
        self, memory: QueryMemory, states: Float[Tensor, "queries encoder_dim"]
    ) -> LendingWeights:
        """Lending in `memory` to each pool, without the rows that are nearly the query of the pool."""
        number = np.full(self._snapshot.positions, -1, np.int64)
        judged_at = self._snapshot.positions_of(memory.rows.numpy())
        number[judged_at[judged_at >= 0]] = np.flatnonzero(judged_at >= 0)
        of_near, of_own = number[self._near], number[self._documents]
        neighbours = np.zeros((*self._pool.shape, NEIGHBOURS), np.int64)
        weights = np.zeros((*self._pool.shape, NEIGHBOURS), np.float32)
        judged = np.zeros(self._pool.shape, bool)
        for query, alone in enumerate(_judged_alone(memory, states)):
            places = self._places[query]
            lenders, own = of_near[places], of_own[places]
            allowed = (lenders >= 0) & ~alone[lenders]
            order = allowed.cumsum(1)
            line, column = np.nonzero(allowed & (order <= NEIGHBOURS))
            slot = order[line, column] - 1
            neighbours[query, line, slot] = lenders[line, column]
            weights[query, line, slot] = self._lending[places[line], column]
            weights[query] /= 1.0 + weights[query].sum(1, keepdims=True)
            judged[query] = (own >= 0) & ~alone[own]
            at = judged[query]
            neighbours[query, at, 0], weights[query, at] = own[at], np.eye(1, NEIGHBOURS)
        weights *= (self._pool >= 0)[..., None]
        return LendingWeights(*map(torch.as_tensor, (neighbours, weights, judged)))


class LendingWeights(NamedTuple):
    """Judged documents that those of a pool borrow from, weights with λ = 1, and which ones are judged."""

    neighbours: Int64[Tensor, "queries pool near"]
    weights: Float32[Tensor, "queries pool near"]
    judged: Bool[Tensor, "queries pool"]

    def scores(
        self, memory: QueryMemory, states: Float[Tensor, "queries encoder_dim"]
    ) -> Float[Tensor, "queries pool"]:
        """γ M of the pool, by rows that are not nearly its query."""
        relevance = memory(states, above=ALIKE).relevance
        of_near = relevance.gather(1, self.neighbours.flatten(1)).view(self.neighbours.shape)
        return self.lent((of_near * self.weights).sum(-1), memory.lending)

    def lent(self, scores: Float[Tensor, "queries pool"], lending: float) -> Float[Tensor, "queries pool"]:
        """Scores with λ = `lending` from those with λ = 1."""
        return scores if lending == 1.0 else torch.where(self.judged, scores, lending * scores)


def _judged_alone(
    memory: QueryMemory, states: Float[Tensor, "queries encoder_dim"]
) -> list[Bool[np.ndarray, " documents"]]:
    """For each query the documents that no other row judged."""
    starts, documents = memory.starts.numpy(), memory.of_document.numpy()
    times = np.bincount(documents, minlength=memory.documents)
    alike = (product(unit(states), memory.states) >= ALIKE).numpy()
    alone: list[Bool[np.ndarray, " documents"]] = []
    for line in alike:
        own = [documents[starts[row] : starts[row + 1]] for row in np.flatnonzero(line)]
        counts = np.bincount(np.concatenate(own), minlength=memory.documents) if own else np.zeros_like(times)
        alone.append((counts == times) & (counts > 0))
    return alone


STRENGTHS = (0.1, 0.2, 0.4, 0.8, 1.5)
TEMPERATURES = (0.03, 0.05, 0.07)
NULL_LEVELS = (0.3, 0.5, 0.7)
LENDINGS = (0.0, 0.5, 1.0)
_ROUNDS = 5
_EPISODE_PARTS = 4  # memories without the episodes of some queries; each queries' own one would take longer
_POOL = 100  # of each search in a pool
_RELEVANT = 200  # of a query in a pool: those that the search finds first
_QUERIES_AT_A_TIME = 32


class MemorySetting(NamedTuple):
    """γ, τ, c and λ of a memory."""

    strength: float
    temperature: float
    null_level: float
    lending: float = 1.0


GRID = [
    MemorySetting(strength, temperature, null_level, lending)
    for temperature, null_level, lending, strength in itertools.product(
        TEMPERATURES, NULL_LEVELS, LENDINGS, STRENGTHS
    )
]


def memory_of(
    examples: Examples,
    setting: MemorySetting,
    *,
    states: Float32[np.ndarray, "queries encoder_dim"] | None = None,
    hidden: Bool[np.ndarray, " positions"] | None = None,
) -> QueryMemory | None:
    """The memory of examples; None if they have no grade.

    Args:
        examples: judged queries; texts are kept only of judgements, not of clicks.
        setting: γ, τ, c and λ.
        states: embeddings of the queries by another encoder; None for the collection's.
        hidden: positions whose grades are left out.
    """
    states = examples.states if states is None else states
    owners = np.repeat(np.arange(len(examples)), [len(at) for at, _ in examples.relevant])
    positions = np.concatenate([at for at, _ in examples.relevant])
    grades = np.concatenate([of for _, of in examples.relevant])
    if hidden is not None:
        visible = ~hidden[positions]
        owners, positions, grades = owners[visible], positions[visible], grades[visible]
    if not len(grades):
        return None
    with_grades, of_query = np.unique(owners, return_inverse=True)
    judged, of_document = np.unique(positions, return_inverse=True)
    texts = [examples.texts[at] for at in with_grades.tolist()] if examples.source == "judgements" else None
    snapshot = examples.snapshot
    return QueryMemory(
        states[with_grades],
        snapshot.embeddings(judged[None])[0],
        snapshot.rows(judged),
        of_query,
        of_document,
        grades,
        texts=texts,
        strength=setting.strength,
        temperature=setting.temperature,
        null_level=setting.null_level,
        lending=setting.lending,
    )


class MemoryValues(NamedTuple):
    """Values of each query on all documents and on hidden ones; the latter NaN if it has none.

    `all` and `unseen` are nDCG@10, the other two average precision.
    """

    all: Float[np.ndarray, " queries"]
    unseen: Float[np.ndarray, " queries"]
    precision: Float[np.ndarray, " queries"]
    unseen_precision: Float[np.ndarray, " queries"]

    def subset(self, which: Int64[np.ndarray, " some"]) -> MemoryValues:
        """The values at these places."""
        return MemoryValues(*(values[which] for values in self))


def values_of_memories(
    examples: Examples, drawn: Int64[np.ndarray, " drawn"], settings: Sequence[Setting]
) -> dict[tuple[Setting, MemorySetting | None], MemoryValues]:
    """Values of each setting with each memory of the grid, and without one.

    No query is answered by a memory that knows its episode (gate/held_out.py).

    Args:
        examples: judged queries.
        drawn: places of those to be answered.
        settings: tuned searches.
    """
    hidings = hidings_of(examples)
    every = [(setting, memory) for memory in (None, *GRID) for setting in settings]
    values = {key: MemoryValues(*np.full((4, len(drawn)), np.nan)) for key in every}
    for places, others in _without_episodes(examples, drawn):
        part = examples.subset(drawn[places].tolist())
        for key, of_part in _values_of(others, part, settings, hidings):
            for whole, some in zip(values[key], of_part, strict=True):
                whole[places] = some
    return values


def _without_episodes(
    examples: Examples, drawn: Int64[np.ndarray, " drawn"]
) -> Iterator[tuple[Int64[np.ndarray, " places"], Examples]]:
    """Places of `drawn`, and the examples that a memory for them may know."""
    episodes = episodes_of(examples.relevant)
    alone = np.bincount(episodes)[episodes[drawn]] == 1
    if len(np.unique(episodes)) == 1:  # nothing would be left
        alone[:] = True
    if alone.any():
        yield np.flatnonzero(alone), examples
    several = np.unique(episodes[drawn[~alone]])
    part = np.random.default_rng(0).permutation(len(several)) % _EPISODE_PARTS
    for number in range(min(_EPISODE_PARTS, len(several))):
        without = np.isin(episodes, several[part == number])
        others = examples.subset(np.flatnonzero(~without).tolist())
        yield np.flatnonzero(without[drawn] & ~alone), others


def _values_of(
    examples: Examples,
    drawn: Examples,
    settings: Sequence[Setting],
    hidings: Sequence[Bool[np.ndarray, " positions"]],
) -> Iterator[tuple[tuple[Setting, MemorySetting | None], MemoryValues]]:
    pool = _Pool.of(examples, drawn, settings)
    states = torch.as_tensor(drawn.states)
    hidden = [None, *hidings]
    judged = [pool.judged(of) for of in hidden]
    for memory, rounds in _remembered(examples, pool, states, hidden):
        for setting, base in pool.scores.items():
            rows = [
                of_round.values(base if of is None else base + of)
                for of, of_round in zip(rounds, judged, strict=True)
            ]
            (ndcg, precision), hidden_ones = rows[0], [*zip(*rows[1:], strict=True)]
            unseen = [_mean_of_rounds(of) for of in hidden_ones]
            yield (setting, memory), MemoryValues(ndcg, unseen[0], precision, unseen[1])


@torch.inference_mode()
def _remembered(
    examples: Examples,
    pool: _Pool,
    states: Float[Tensor, "queries encoder_dim"],
    hidings: Sequence[Bool[np.ndarray, " positions"] | None],
) -> Iterator[tuple[MemorySetting | None, list[Float[Tensor, "queries pool"] | None]]]:
    """γ M of the pool by each memory of the grid, in each round; first without a memory."""
    yield None, [None for _ in hidings]
    first = GRID[0]
    memories = [memory_of(examples, first, hidden=hidden) for hidden in hidings]
    everything = memory_of(examples, first)
    assert everything is not None
    lending = PoolLending(everything, examples.snapshot, pool.positions)
    lent = [None if memory is None else lending.without_own(memory, states) for memory in memories]
    plain: dict[tuple[float, float], list[Float[Tensor, "queries pool"] | None]] = {}
    for setting in GRID:
        key = setting[1:3]
        if key not in plain:
            plain = {key: []}  # settings of one temperature and level come in a row
            for memory, of in zip(memories, lent, strict=True):
                scores = None
                if memory is not None and of is not None:
                    scores = of.scores(memory.with_setting(1.0, *key), states)
                plain[key].append(scores)
        yield (
            setting,
            [
                None if of is None or scores is None else setting.strength * of.lent(scores, setting.lending)
                for scores, of in zip(plain[key], lent, strict=True)
            ],
        )


def _mean_of_rounds(rows: Sequence[Float[np.ndarray, " queries"]]) -> Float[np.ndarray, " queries"]:
    """The mean over the rounds in which a query has a hidden document; NaN where it never has."""
    every = np.stack(rows)
    counts = (~np.isnan(every)).sum(0)
    return np.where(counts > 0, np.nansum(every, 0) / np.maximum(counts, 1), np.nan)


def hidings_of(examples: Examples) -> list[Bool[np.ndarray, " positions"]]:
    """The documents of each round: every judged document in exactly one, equal embeddings together."""
    judged = np.unique(np.concatenate([at for at, _ in examples.relevant]))
    embeddings = np.ascontiguousarray(examples.snapshot.embeddings(judged[None])[0])
    alike: dict[bytes, int] = {}
    group = np.array([alike.setdefault(row.tobytes(), len(alike)) for row in embeddings], np.int64)
    of_group = np.random.default_rng(0).permutation(len(alike)) % _ROUNDS
    hidings = np.zeros((_ROUNDS, examples.snapshot.positions), bool)
    hidings[of_group[group], judged] = True
    return list(hidings)


@dataclass(frozen=True, slots=True)
class _Pool:
    """The documents of each query that may be among its first ten, and how they score.

    Attributes:
        positions: ascending, −1 behind.
        scores: t · logit by each setting, −inf at −1 and at what is hidden from the query.
        grades: 0 if not relevant.
        relevant: relevant positions and grades, of which `grades` are those in the pool.
    """

    positions: Int64[np.ndarray, "queries pool"]
    scores: dict[Setting, Float[Tensor, "queries pool"]]
    grades: Float[Tensor, "queries pool"]
    relevant: tuple[Int64[np.ndarray, "queries longest"], Float32[np.ndarray, "queries longest"]]

    @classmethod
    def of(cls, examples: Examples, drawn: Examples, settings: Sequence[Setting]) -> _Pool:
        ranking = Ranking(drawn)
        dim = drawn.states.shape[1]
        positions, grades = padded(drawn.relevant)
        proposed = [_raised(examples, drawn)]
        parts = torch.as_tensor(np.maximum(positions, 0)).split(_QUERIES_AT_A_TIME)
        absent = torch.as_tensor(positions < 0).split(_QUERIES_AT_A_TIME)
        heads = {setting: head_of(setting, dim).settle() for setting in settings}
        for setting, head in heads.items():
            best: list[Int64[Tensor, "batch some"]] = []
            for part, none, block in zip(
                parts, absent, ranking.scores(head, setting.hop_strength), strict=True
            ):
                best.append(block.topk(min(_POOL, block.shape[1])).indices)
                if len(proposed) == 1:  # the first setting
                    own = block.gather(1, part).masked_fill(none, -torch.inf)
                    own = own.topk(min(_RELEVANT, own.shape[1]))
                    relevant = part.gather(1, own.indices).masked_fill(own.values == -torch.inf, -1)
                    best[-1] = torch.cat([best[-1], relevant], dim=1)
            proposed.append(torch.cat(best).numpy())
        pool = _distinct(np.concatenate(proposed, axis=1))
        at = torch.as_tensor(np.maximum(pool, 0)).split(_QUERIES_AT_A_TIME)
        missing = torch.as_tensor(pool < 0)
        scores: dict[Setting, Float[Tensor, "queries pool"]] = {}
        # Ranked a second time: the scores of all documents may not fit into memory.
        for setting, head in heads.items():
            blocks = ranking.scores(head, setting.hop_strength)
            in_pool = [block.gather(1, part) for block, part in zip(blocks, at, strict=True)]
            scores[setting] = torch.cat(in_pool).masked_fill(missing, -torch.inf)
        graded = Relevant(drawn.relevant).gains(pool).astype(np.float32)
        return cls(pool, scores, torch.as_tensor(graded), (positions, grades))

    def judged(self, hidden: Bool[np.ndarray, " positions"] | None) -> _Judged:
        """Grades of the pool; with `hidden` those of these documents alone."""
        positions, relevant = self.relevant
        grades, outside = self.grades, None
        if hidden is not None:
            outside = torch.as_tensor(~hidden[np.maximum(self.positions, 0)]) & (grades > 0)
            grades = grades.masked_fill(outside, 0.0)
            relevant = np.where(hidden[np.maximum(positions, 0)], relevant, 0.0)
        return _Judged(grades, outside, -np.sort(-relevant, axis=1).astype(np.float64))


class _Judged(NamedTuple):
    """Grades of a pool, documents that are taken out of its ranking, and all relevant grades, falling."""

    grades: Float[Tensor, "queries pool"]
    outside: Bool[Tensor, "queries pool"] | None
    ideal: Float[np.ndarray, "queries longest"]

    def values(
        self, scores: Float[Tensor, "queries pool"]
    ) -> tuple[Float[np.ndarray, " queries"], Float[np.ndarray, " queries"]]:
        """nDCG@10 and average precision of each query; NaN where nothing is relevant."""
        if self.outside is not None:
            scores = scores.masked_fill(self.outside, -torch.inf)
        top = scores.topk(min(EVIDENCE_DEPTH, scores.shape[1]), dim=1)
        gains = self.grades.gather(1, top.indices).masked_fill(top.values == -torch.inf, 0.0)
        judged = JudgedQuery(gains.double().numpy(), self.ideal)
        with np.errstate(invalid="ignore", divide="ignore"):
            return ndcg(judged, DEPTH), average_precision(judged, EVIDENCE_DEPTH)


@torch.inference_mode()
def _raised(examples: Examples, drawn: Examples) -> Int64[np.ndarray, "queries pool"]:
    """The documents that a memory of the middle of the grid raises most."""
    memory = memory_of(examples, MemorySetting(1.0, 0.05, 0.5))
    assert memory is not None
    bound = SnapshotMemory(memory, examples.snapshot)
    states = torch.as_tensor(drawn.states)
    blocks = [
        bound.best(memory(states[at : at + _QUERIES_AT_A_TIME], above=ALIKE), _POOL)
        for at in range(0, len(states), _QUERIES_AT_A_TIME)
    ]
    return np.concatenate(blocks)


def _distinct(positions: Int64[np.ndarray, "queries found"]) -> Int64[np.ndarray, "queries pool"]:
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(positions < 0, last, positions), axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = last
    ordered = np.sort(ordered, axis=1)
    width = int((ordered != last).sum(1).max(initial=1))
    return np.where(ordered == last, -1, ordered)[:, :width]
