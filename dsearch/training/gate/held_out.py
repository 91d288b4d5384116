"""Held-out queries: their choice, and a head's answers to them, separately for seen and unseen documents.

Small collections cannot spare many queries, so they are cross-fitted (Stone 1974): a head is trained without
each fold and answers that fold, until enough queries have been held out once.

Headroom estimates the possible gain before training. It is an indication, not a bound.

Training moves relevant documents up, mostly those that rank high already. So the difference between
recall@100 and recall@10 is within easy reach. Documents below the first hundred are not, though training
raises some of them (SciFact: recall@100 from .955 to .978).

Episodes are queries that were judged as one, such as the title and the topic of one article.

Data often has several queries of one origin with nearly the same judgements. Held-out answers to one of them
by what was learned from the others promise what no new query will find: on NFCorpus a query memory seemed to
gain .110 and brought .090. So an episode is held out as a whole.

Two queries are of one episode if their relevant documents A and B agree, and so are those that are connected
over others:

    |A ∩ B| / |A ∪ B| ≥ AGREEMENT        |A|, |B| ≥ FEWEST

Smaller sets agree by chance: two questions may well have the same single answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.errors import amount
from dsearch.training.data.examples import Examples
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.ranking import BothTops, Ranking
from dsearch.training.relevant import Pairs, Relevant, without

ENOUGH = 500  # held-out queries: further folds would cost time and tell little more
MOST = 1000  # of one fold that are ranked


@dataclass(frozen=True, slots=True)
class Answers:
    """nDCG@10 of one head on held-out queries, and average precision, by which the gate decides.

    Average precision tells two rankings apart with 1.1 to 1.8 times the t of nDCG@10 where queries have
    several relevant documents, and as well where they have one (guide `decisions`).

    Attributes:
        all: nDCG@10 of every query.
        seen: True if a relevant document was also relevant to a training query.
        unseen: nDCG@10 over unseen documents only: seen ones are removed from ranking and judgements (the
            residual collection); NaN if none is left. For a query without seen documents this is `all`.
        precision: average precision of every query; None where only nDCG@10, or another measure, is known.
        unseen_precision: the same over unseen documents.
    """

    all: Float[np.ndarray, " queries"]
    seen: Bool[np.ndarray, " queries"]
    unseen: Float[np.ndarray, " queries"]
    precision: Float[np.ndarray, " queries"] | None = None
    unseen_precision: Float[np.ndarray, " queries"] | None = None

    @classmethod
    def of_scores(cls, scores: Sequence[float] | Float[np.ndarray, " examples"]) -> Answers:
        """Scores as answers; of examples that are no queries nothing is seen or unseen."""
        numbers = np.asarray(scores, np.float64)
        return cls(numbers, np.zeros(len(numbers), bool), numbers)

    @property
    def evidence(self) -> Float[np.ndarray, " queries"]:
        """What the gate decides by, of every query."""
        return self.all if self.precision is None else self.precision

    @property
    def unseen_evidence(self) -> Float[np.ndarray, " queries"]:
        """What the gate decides by, over unseen documents; NaN as in `unseen`."""
        return self.unseen if self.unseen_precision is None else self.unseen_precision

    def __len__(self) -> int:
        return len(self.all)

    def means(self) -> dict[str, float | None]:
        """Mean nDCG@10 of all queries, of those with seen documents, and on unseen documents."""
        unseen = self.unseen[~np.isnan(self.unseen)]
        parts = {"all": self.all, "seen": self.all[self.seen], "unseen": unseen}
        return {name: float(of.mean()) if len(of) else None for name, of in parts.items()}

    def subset(self, which: Int64[np.ndarray, " some"]) -> Answers:
        """The answers at these indices."""
        precision, unseen = self.precision, self.unseen_precision
        return Answers(
            self.all[which],
            self.seen[which],
            self.unseen[which],
            None if precision is None else precision[which],
            None if unseen is None else unseen[which],
        )


def joined(parts: list[Answers]) -> Answers:
    """The answers of several folds as one."""
    whole = Answers(
        np.concatenate([part.all for part in parts]),
        np.concatenate([part.seen for part in parts]),
        np.concatenate([part.unseen for part in parts]),
    )
    if any(part.precision is None for part in parts):
        return whole
    return replace(
        whole,
        precision=np.concatenate([part.evidence for part in parts]),
        unseen_precision=np.concatenate([part.unseen_evidence for part in parts]),
    )


def is_clear(gains: Float[np.ndarray, " queries"], errors: float = 1.0) -> bool:
    """True if the mean gain is above so many standard errors: among many choices some look better by luck."""
    return len(gains) > 0 and bool(gains.mean() > errors * gains.std() / np.sqrt(len(gains)))


def drawn_parts(count: int, folds: int, seed: int, draw: int) -> Iterator[Bool[np.ndarray, " queries"]]:
    """Masks of parts of queries, the n-th draw of a seed: each is answered by what the others choose."""
    fold = np.random.default_rng([seed, draw]).permutation(count) % folds
    return (fold == number for number in range(min(folds, count)))


class HeldOut:
    """Held-out examples over the whole corpus, ranked exactly.

    Args:
        held_out: held-out queries.
        training: training queries; a document relevant to one of them is *seen*.
        keywords: True to include the keyword score in the ranking.
    """

    def __init__(self, held_out: Examples, training: Examples, *, keywords: bool = True):
        self.examples = held_out
        self._ranking = Ranking(held_out, keywords=keywords)
        trained_on = np.unique(np.concatenate([positions for positions, _ in training.relevant] or [[-1]]))
        seen = [np.isin(positions, trained_on) for positions, _ in held_out.relevant]
        self.seen: Bool[np.ndarray, " queries"] = np.array([bool(of.any()) for of in seen], bool)
        pairs = list(zip(held_out.relevant, seen, strict=True))
        self._whole = Relevant(held_out.relevant)
        self._residual = Relevant([(at[~of], grades[~of]) for (at, grades), of in pairs])
        self._removed = [at[of] for (at, _), of in pairs]

    def answers(
        self,
        head: Head,
        states: Float32[np.ndarray, "queries encoder_dim"] | None = None,
        corpus: Float[Tensor, "documents encoder_dim"] | None = None,
    ) -> Answers:
        """Answers of this head, with a second hop if it has a hop strength.

        Args:
            head: head to evaluate.
            states: query embeddings of another encoder; None for the collection's.
            corpus: document embeddings of another encoder; None for the collection's.
        """
        strength = head.hop_strength.item()
        return self.answers_of_alike([head], [strength], states, corpus)[0][strength]

    def answers_of_alike(
        self,
        heads: Sequence[Head],
        hop_strengths: Sequence[float],
        states: Float32[np.ndarray, "queries encoder_dim"] | None = None,
        corpus: Float[Tensor, "documents encoder_dim"] | None = None,
        further: FurtherPassages | None = None,
    ) -> list[dict[float, Answers]]:
        """Answers of each head at each hop strength; the heads may differ only in their keyword weight."""
        ranked = self._ranking.tops_without(
            heads, hop_strengths, self._removed, states=states, corpus=corpus, further=further
        )
        return [
            {strength: self._answers(top) for strength, top in zip(hop_strengths, tops, strict=True)}
            for tops in ranked
        ]

    def answers_to(self, top: Int64[np.ndarray, "queries depth"]) -> Answers:
        """Answers of a ranking of positions, best first, `EVIDENCE_DEPTH` deep."""
        return self._answers(BothTops(top, without(top, Pairs(self._removed).among(top))))

    def _answers(self, top: BothTops) -> Answers:
        return Answers(
            self._whole.ndcg_at_10(top.all_documents),
            self.seen,
            self._residual.ndcg_at_10(top.without_removed),
            self._whole.average_precision(top.all_documents),
            self._residual.average_precision(top.without_removed),
        )


def split_folds(examples: Examples, folds: int, seed: int) -> list[list[int]]:
    """Indices in `folds` parts of about equal size, with seen and unseen documents in each.

    Queries that share documents, directly or over others, form a group. Half of the groups stay together, so
    that their fold has unseen documents; the queries of the others are spread, so that there are seen ones.
    Groups too large for a fold are spread, each episode as a whole.
    """
    generator = np.random.default_rng(seed)
    groups: dict[int, list[int]] = {}
    for query, number in enumerate(_groups(examples)):
        groups.setdefault(number, []).append(query)
    parts: list[list[int]] = [[] for _ in range(folds)]
    together, spread = [], []
    for position, number in enumerate(generator.permutation(len(groups))):
        members = groups[int(number)]
        whole = position % 2 == 0 and len(members) <= len(examples) / folds
        (together if whole else spread).append(members)
    for members in together:
        min(parts, key=len).extend(members)
    episodes = episodes_of(examples.relevant)
    for members in spread:
        # One after the other into the emptiest part: members of a group come to lie in different ones.
        by_episode: dict[int, list[int]] = {}
        for query in members:
            by_episode.setdefault(int(episodes[query]), []).append(query)
        for episode in by_episode.values():
            min(parts, key=len).extend(episode)
    return [sorted(part) for part in parts]


def without_fold(examples: Examples, fold: list[int], seed: int) -> tuple[Examples, list[int]]:
    """The examples without a fold, and the queries of the fold that are ranked: at most `MOST`, drawn."""
    training = examples.subset(sorted(set(range(len(examples))) - set(fold)))
    if len(fold) > MOST:
        fold = np.sort(np.random.default_rng(seed).choice(fold, MOST, replace=False)).tolist()
    return training, fold


def _groups(examples: Examples) -> list[int]:
    """A number for each query, equal for queries that are connected by shared documents."""
    groups, first = _DisjointSets(len(examples)), dict[int, int]()
    for query, (positions, _) in enumerate(examples.relevant):
        for at in positions.tolist():
            groups.join(query, first.setdefault(at, query))
    numbers: dict[int, int] = {}
    return [numbers.setdefault(groups.root(query), len(numbers)) for query in range(len(examples))]


FEW_QUERIES = 100
LITTLE_MISSING = 0.02
MOST_ANSWERED = 0.95
_SHALLOW, _DEEP = 10, 100


@dataclass(frozen=True, slots=True)
class Headroom:
    """Quality of the present search on the training queries.

    Attributes:
        queries: number of queries.
        judgements: number of relevant documents over all of them.
        recall_at_10: share of the relevant documents among the first ten.
        recall_at_100: share of the relevant documents among the first hundred.
        answered_first: share of queries whose first hit is relevant.
    """

    queries: int
    judgements: int
    recall_at_10: float
    recall_at_100: float
    answered_first: float

    @property
    def doubts(self) -> list[str]:
        """Why training is unlikely to help; nothing when there is no reason to think so."""
        reasons = []
        if self.answered_first >= MOST_ANSWERED:
            reasons.append(f"{self.answered_first:.0%} of the queries are answered at rank 1 already")
        if self.recall_at_100 - self.recall_at_10 < LITTLE_MISSING and self.answered_first > 0.5:
            reasons.append("nearly all relevant documents that are found are among the first ten already")
        if self.queries < FEW_QUERIES:
            reasons.append(
                f"{amount(self.queries, 'training query is', 'training queries are')} too few to train a "
                "projection reliably; `dsearch tune` "
                "fits only keyword weight, k1, b and hop strength and needs a few dozen"
            )
        return reasons

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "doubts": self.doubts}

    def to_text(self) -> str:
        """A line or two for a terminal."""
        line = (
            f"headroom on {amount(self.queries, 'query')} with {amount(self.judgements, 'judgement')}: "
            f"recall@10 {self.recall_at_10:.3f}, recall@100 {self.recall_at_100:.3f}, "
            f"answered at rank 1: {self.answered_first:.0%}"
        )
        return "\n".join([line, *(f"training is unlikely to help: {doubt}" for doubt in self.doubts)])


def headroom(examples: Examples, head: Head | None = None, *, keywords: bool = True) -> Headroom:
    """Quality of `head` (None: untrained) on the examples."""
    head = head or Head(examples.states.shape[1])
    top = Ranking(examples, keywords=keywords).top(head, _DEEP, hop_strength=head.hop_strength.item())
    relevant = Relevant(examples.relevant).gains(top) > 0
    wanted = np.array([len(positions) for positions, _ in examples.relevant])
    return Headroom(
        queries=len(examples),
        judgements=int(wanted.sum()),
        recall_at_10=float(np.mean(relevant[:, :_SHALLOW].sum(1) / wanted)),
        recall_at_100=float(np.mean(relevant.sum(1) / wanted)),
        answered_first=float(np.mean(relevant[:, 0])),
    )


AGREEMENT = 0.8  # Jaccard index from which two sets are of one episode (guide `decisions`)
FEWEST = 3  # documents of a set that is compared


def episodes_of(
    relevant: Sequence[tuple[Int64[np.ndarray, " _"], np.ndarray]],
) -> Int64[np.ndarray, " queries"]:
    """A number for each query, equal within an episode.

    Only sets that share one of their rarest documents are compared: sets that agree do (prefix filtering,
    Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and Srikant 2007).

    Args:
        relevant: for each query, its relevant positions, and grades that have no part.
    """
    episodes = _DisjointSets(len(relevant))
    sets = [frozenset(positions.tolist()) for positions, _ in relevant]
    times: dict[int, int] = {}
    for document in (document for of in sets for document in of):
        times[document] = times.get(document, 0) + 1
    sharing: dict[int, list[int]] = {}
    for query, own in enumerate(sets):
        if len(own) < FEWEST:
            continue
        rarest = sorted(own, key=lambda document: (times[document], document))
        for document in rarest[: len(own) - math.ceil(AGREEMENT * len(own)) + 1]:
            others = sharing.setdefault(document, [])
            for other in others:
                if episodes.root(other) != episodes.root(query) and _agree(own, sets[other]):
                    episodes.join(query, other)
            others.append(query)
    return np.array([episodes.root(query) for query in range(len(relevant))], np.int64)


class _DisjointSets:
    """Numbers in sets that can be joined, each set named by one of its numbers (union-find)."""

    def __init__(self, count: int):
        self._parent = list(range(count))

    def root(self, number: int) -> int:
        """The number that names the set of this one."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def join(self, number: int, other: int) -> None:
        """Put the set of a number into that of another one."""
        self._parent[self.root(number)] = self.root(other)


def _agree(first: frozenset[int], second: frozenset[int]) -> bool:
    common = len(first & second)
    return common >= AGREEMENT * (len(first) + len(second) - common)
