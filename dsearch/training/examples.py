"""`Examples`: queries with the documents that answer them, as the trainer takes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.attention.head import Head
from dsearch.engine import Collection, Snapshot
from dsearch.errors import InvalidRequest

Reward = Callable[
    [Sequence[str], Int64[np.ndarray, "queries samples"]], Float32[np.ndarray, "queries samples"]
]
"""(texts of queries, positions shown to each) → what each was worth: a black box."""

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Examples:
    """Training queries over the documents of one snapshot.

    Attributes:
        snapshot: the documents.
        texts: the words of each query.
        states: the encoder's embedding of each query.
        relevant: for each query, positions in the snapshot and grades > 0.
        left_out: how many queries or judgements were not usable, by reason.
        digest: SHA-256 over queries and judgements: what the model was trained on.
        teacher: for each query, positions in the snapshot and a teacher's scores of them; None without one.
        weights: how much each query counts, 1 on average; all alike when None. The listwise objectives and
            in-batch take them into account.
        hidden: for each query, positions that have no part in its ranking; None where there are none.
        reward: what showing documents at positions [queries, samples] to these queries is worth, for the
            objective `reinforce`; the grades when None.
        source: where they come from; of judgements alone a model keeps the queries' words.
        known: what was worked out of the snapshot and is the same for every part of these examples, see
            `once`; None where nothing is kept.
    """

    snapshot: Snapshot
    texts: list[str]
    states: Float32[np.ndarray, "queries encoder_dim"]
    relevant: list[tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]]
    left_out: dict[str, int]
    digest: str
    teacher: list[tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]] | None = None
    weights: Float32[np.ndarray, " queries"] | None = None
    hidden: list[Int64[np.ndarray, " _"]] | None = None
    reward: Reward | None = None
    source: Literal["judgements", "clicks", "documents"] = "judgements"
    known: dict[Hashable, Any] | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    def remembering(self) -> Examples:
        """These, and what is worked out for any part of them is kept as long as they are."""
        return self if self.known is not None else replace(self, known={})

    def once(self, name: Hashable, make: Callable[[], _Made]) -> _Made:
        """What `make` gives, made once for these examples and all parts of them, if they remember."""
        if self.known is None:
            return make()
        if name not in self.known:
            self.known[name] = make()
        return self.known[name]

    def weighed(self, head: Head | None) -> Examples:
        """These over documents whose keywords count as a head has it (k1 and b are its own)."""
        snapshot = self.snapshot if head is None else self.snapshot.weighed(head.keyword_weighting)
        return self if snapshot is self.snapshot else replace(self, snapshot=snapshot)

    def subset(self, which: Sequence[int]) -> Examples:
        """The examples at these indices."""
        return Examples(
            self.snapshot,
            [self.texts[i] for i in which],
            self.states[np.asarray(which, np.int64)],
            [self.relevant[i] for i in which],
            {},
            self.digest,
            None if self.teacher is None else [self.teacher[i] for i in which],
            None if self.weights is None else self.weights[np.asarray(which, np.int64)],
            None if self.hidden is None else [self.hidden[i] for i in which],
            self.reward,
            self.source,
            self.known,
        )


def examples_from_judgements(
    collection: Collection,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float]],
    exclude: Mapping[str, Iterable[str]] | None = None,
    *,
    teacher: Mapping[str, Mapping[str, float]] | None = None,
) -> Examples:
    """Judgements (query id → document id → grade) as examples; what cannot be used is counted, not fatal.

    Args:
        collection: the documents.
        queries: query id → text.
        qrels: query id → document id → grade.
        exclude: query id → documents that are left out, of the judgements and of every ranking.
        teacher: query id → document id → score, for the objectives that learn from a teacher.

    Raises:
        InvalidRequest: nothing is left to learn from.
    """
    excluded = {query: set(ids) for query, ids in (exclude or {}).items()}
    scored = teacher or {}
    sources = (*qrels.values(), *scored.values(), *excluded.values())
    ids = {document for documents in sources for document in documents}
    rows = collection.store.rows_of(sorted(ids))
    snapshot = collection.snapshot
    known = list(rows)
    positions = snapshot.positions_of(np.array([rows[id] for id in known], np.int64))
    position_of = {id: int(at) for id, at in zip(known, positions, strict=True) if at >= 0}
    left_out = {"queries without text": 0, "queries without a known positive": 0, "unknown documents": 0}
    texts: list[str] = []
    relevant: list[tuple[np.ndarray, np.ndarray]] = []
    taught: list[tuple[np.ndarray, np.ndarray]] = []
    hidden: list[np.ndarray] = []
    for query in sorted(qrels):
        text = queries.get(query, "").strip()
        if not text:
            left_out["queries without text"] += 1
            continue
        positive = {
            document: grade
            for document, grade in qrels[query].items()
            if grade > 0 and document not in excluded.get(query, ())
        }
        found = {
            position_of[document]: grade for document, grade in positive.items() if document in position_of
        }
        left_out["unknown documents"] += len(positive) - len(found)
        if not found:
            left_out["queries without a known positive"] += 1
            continue
        texts.append(text)
        relevant.append(_arrays(found))
        known_here = sorted(position_of[id] for id in excluded.get(query, ()) if id in position_of)
        hidden.append(np.array(known_here, np.int64))
        taught.append(
            _arrays({position_of[id]: s for id, s in scored.get(query, {}).items() if id in position_of})
        )
    examples = make_examples(collection, snapshot, texts, relevant, left_out)
    return replace(
        examples,
        teacher=None if teacher is None else taught,
        hidden=hidden if any(len(of) for of in hidden) else None,
    )


def make_examples(
    collection: Collection,
    snapshot: Snapshot,
    texts: list[str],
    relevant: list[tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]],
    left_out: dict[str, int],
) -> Examples:
    """Encode the queries.

    Raises:
        InvalidRequest: no example.
    """
    left_out = {reason: count for reason, count in left_out.items() if count}
    if not texts:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items()) or "there are none"
        raise InvalidRequest(
            f"no usable training query: {reasons}. Give queries with a relevant document of "
            f"collection {collection.name!r}"
        )
    states = collection.encoder.encode_queries(texts)
    content = [
        [text, at.tolist(), grades.tolist()] for text, (at, grades) in zip(texts, relevant, strict=True)
    ]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return Examples(snapshot, texts, states, relevant, left_out, digest)


def _arrays(values: Mapping[int, float]) -> tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]:
    return np.array(list(values), np.int64), np.array(list(values.values()), np.float32)
