"""`Examples`: training queries with their relevant documents, the input of every trainer.

Hard negatives are documents that score high for a query and are presumably not relevant.

Most unjudged documents that rank high beside a known answer are relevant too. So a candidate counts as a
negative only if the untrained encoder scores it below `margin` times the query's best known answer
(positive-aware mining, "TopK-PercPos": Moreira et al. 2024, NV-Retriever, arXiv:2407.15831, section 4.2).

Query keys are training queries as further keys of their answers, found by similar queries.

    score(q, d) = max( max_p q · k_p,  γ max_i q · q_i )    p: passages of d, i: training queries it answers

A document is scored by its best key, as a long one by its best passage (maxp.py), so these keys are searched,
weighed and stored like passages. They raise a document only for queries that are nearer to one of its
training queries than to its own text: other queries hardly change, whereas a projection moves all keys for
all queries. This is document expansion (Nogueira et al. 2019, arXiv:1904.08375), with judged instead of
predicted queries, embedded instead of indexed.

Held-out queries choose γ: with the untrained encoder, .95 raised seen documents of SciFact from .721 to .921
and cost unseen ones .002; on SQuAD's single sentences it cost those .024, where .8 cost .003.

Self-supervision uses sentences of a document (inverse cloze task) and its title as queries for it.

Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering" (arXiv:1906.00300),
section 4. The sentence stays in its document here, since embeddings are stored once. So keywords have to be
left out, or training would learn that the answer always contains the query's words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float32, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.corpus import inverse_cloze, title_queries
from dsearch.engine import Collection, EncodedDocuments, Snapshot
from dsearch.errors import InvalidRequest
from dsearch.store import Passages, Store
from dsearch.types import Document

_Made = TypeVar("_Made")
_LARGEST = 1e38  # of single precision, in which losses are computed


@dataclass(frozen=True, slots=True)
class Examples:
    """Training queries over the documents of one snapshot.

    Attributes:
        snapshot: snapshot with the documents.
        texts: text of each query.
        states: the encoder's embedding of each query.
        relevant: for each query, positions in the snapshot and grades > 0.
        left_out: number of unusable queries or judgements, by reason.
        digest: SHA-256 of queries, judgements, a teacher's scores and what is excluded, to identify the
            training data.
        teacher: for each query, positions in the snapshot and a teacher's scores of them; None without one.
        weights: weight of each query, 1 on average; None for equal weights. Used by the objectives listwise
            and judged.
        hidden: for each query, positions excluded from its ranking; None if there are none.
        source: origin of the examples; a model stores the queries' texts only for judgements.
        negatives: positions of documents that were seen and left; the objective `judged` compares with them,
            too. None without any.
        known: cache of results derived from the snapshot, shared by all parts of these examples (`cached`);
            None disables it.
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
    source: Literal["judgements", "clicks", "documents"] = "judgements"
    cache: dict[Hashable, Any] | None = field(default=None, repr=False, compare=False)
    negatives: Int64[np.ndarray, " _"] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def remembering(self) -> Examples:
        """Return these examples with a cache of results, shared by all their parts."""
        return self if self.cache is not None else replace(self, cache={})

    def cached(self, name: Hashable, compute: Callable[[], _Made]) -> _Made:
        """Return `compute()`, cached for these examples and all their parts if they have a cache."""
        if self.cache is None:
            return compute()
        if name not in self.cache:
            self.cache[name] = compute()
        return self.cache[name]

    def weighed(self, head: Head | None) -> Examples:
        """These over documents whose keywords count as a head has it (k1 and b are its own)."""
        snapshot = self.snapshot if head is None else self.snapshot.with_bm25(head.keyword_weighting)
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
            self.source,
            self.cache,
            self.negatives,
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
        InvalidRequest: nothing is left to learn from; a grade or score that is no number of single precision.
    """
    for numbers in (qrels, teacher or {}):
        _require_finite(numbers)
    excluded = {query: set(ids) for query, ids in (exclude or {}).items()}
    scored = teacher or {}
    sources = (*qrels.values(), *scored.values(), *excluded.values())
    ids = {document for documents in sources for document in documents}
    rows = collection.store.rows_of(sorted(ids))
    snapshot = collection.snapshot
    document_ids = list(rows)
    positions = snapshot.positions_of(np.array([rows[id] for id in document_ids], np.int64))
    position_of = {id: int(at) for id, at in zip(document_ids, positions, strict=True) if at >= 0}
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
        rows_of_query = {
            position_of[document]: grade for document, grade in positive.items() if document in position_of
        }
        left_out["unknown documents"] += len(positive) - len(rows_of_query)
        if not rows_of_query:
            left_out["queries without a known positive"] += 1
            continue
        texts.append(text)
        relevant.append(_arrays(rows_of_query))
        known_here = sorted(position_of[id] for id in excluded.get(query, ()) if id in position_of)
        hidden.append(np.array(known_here, np.int64))
        taught.append(
            _arrays({position_of[id]: s for id, s in scored.get(query, {}).items() if id in position_of})
        )
    examples = make_examples(collection, snapshot, texts, relevant, left_out)
    of_teacher = None if teacher is None else taught
    of_hidden = hidden if any(len(of) for of in hidden) else None
    digest = _digest_beside(examples.digest, of_teacher, of_hidden)
    return replace(examples, teacher=of_teacher, hidden=of_hidden, digest=digest)


def _digest_beside(
    digest: str,
    teacher: Sequence[tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]] | None,
    hidden: Sequence[Int64[np.ndarray, " _"]] | None,
) -> str:
    """The digest of judgements with what else is learned by; itself without any."""
    if teacher is None and hidden is None:
        return digest
    scored = [[at.tolist(), scores.tolist()] for at, scores in teacher or ()]
    content = [digest, scored, [at.tolist() for at in hidden or ()]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _require_finite(numbers: Mapping[str, Mapping[str, float]]) -> None:
    for query, of in numbers.items():
        for document, number in of.items():
            if not abs(number) <= _LARGEST:  # NaN too
                raise InvalidRequest(
                    f"query {query!r} and document {document!r}: {number}; use finite grades and scores, up "
                    f"to {_LARGEST:g}"
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
        reasons = "; ".join(f"{reason}: {count}" for reason, count in left_out.items()) or "there are none"
        raise InvalidRequest(
            f"no usable training query: {reasons}. Give queries with a relevant document of "
            f"collection {collection.name!r}"
        )
    states = collection.encoder.encode_queries(texts)
    return Examples(snapshot, texts, states, relevant, left_out, digest_of(texts, relevant))


def digest_of(
    texts: Sequence[str],
    relevant: Sequence[tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]],
) -> str:
    """SHA-256 of queries and their judgements, as `Examples.digest`."""
    content = [
        [text, at.tolist(), grades.tolist()] for text, (at, grades) in zip(texts, relevant, strict=True)
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _arrays(values: Mapping[int, float]) -> tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]:
    return np.array(list(values), np.int64), np.array(list(values.values()), np.float32)


def mined_negatives(
    candidates: Int64[np.ndarray, "batch candidates"],
    candidate_scores: Float32[np.ndarray, "batch candidates"],
    relevant: Sequence[Int64[np.ndarray, " _"]],
    answer_scores: Float32[np.ndarray, " batch"],
    *,
    count: int,
    margin: float,
    generator: torch.Generator,
) -> list[Int64[np.ndarray, " _"]]:
    """Some negatives for each query, drawn from its candidates; fewer where fewer are left.

    Args:
        candidates: positions, of each query its own.
        candidate_scores: the untrained encoder's.
        relevant: positions of each query's known answers, which are no negatives.
        answer_scores: the untrained encoder's score of the best of those.
        count: wanted.
        margin: a candidate above `margin · answer_score` is left out.
        generator: random generator of the draw.
    """
    negatives: list[np.ndarray] = []
    for row, answers in enumerate(relevant):
        allowed = ~np.isin(candidates[row], answers) & (candidate_scores[row] < margin * answer_scores[row])
        left = candidates[row][allowed]
        drawn = torch.randperm(len(left), generator=generator)[:count].numpy()
        negatives.append(left[drawn])
    return negatives


STRENGTHS = (0.0, 0.8, 0.9, 0.95)  # 0: none
MOST = 32  # of one document: a search compares a candidate's keys with the query, all of them


def with_query_keys(
    documents: EncodedDocuments,
    store: Store,
    examples: Examples,
    states: Float32[np.ndarray, "queries encoder_dim"],
    *,
    strength: float,
    seed: int = 0,
) -> EncodedDocuments:
    """The documents with the queries that they answer among their keys.

    Args:
        documents: documents encoded by the encoder of the states.
        store: store of the documents, for the lengths of their texts.
        examples: training queries; each becomes a key of its best answers, not of those graded lower.
        states: embeddings of the queries.
        strength: γ; 0 leaves the documents as they are.
        seed: random seed of the draw if a document answers more than `MOST` queries.
    """
    if strength == 0:
        return documents
    queries: dict[int, list[int]] = {}
    for query, (positions, grades) in enumerate(examples.relevant):
        for at in positions[grades == grades.max()].tolist():
            queries.setdefault(at, []).append(query)
    generator = np.random.default_rng(seed)
    further = dict(documents.further)
    for at in sorted(queries):
        own = queries[at]
        if len(own) > MOST:
            own = sorted(generator.choice(own, MOST, replace=False).tolist())
        keys = (strength * states[own]).astype(np.float32)
        further_keys = further.get(at) or _whole(documents, store, at, keys.shape[1])
        # A query stands for the document from its beginning, as the first passage does.
        spans = np.concatenate([further_keys.spans, np.repeat(further_keys.spans[:1], len(own), axis=0)])
        further[at] = Passages(spans, np.concatenate([further_keys.embeddings, keys]))
    return replace(documents, further=further)


def _whole(documents: EncodedDocuments, store: Store, at: int, dimension: int) -> Passages:
    """A document that was not cut, as one passage."""
    (document,) = store.documents(documents.state.rows(np.array([at])))
    return Passages(np.array([[0, len(document.text)]], np.int64), np.zeros((0, dimension), np.float32))


_READ_AT_A_TIME = 4096


def examples_from_corpus(
    collection: Collection, *, per_document: int = 2, limit: int | None = None, seed: int = 0
) -> Examples:
    """Random sentences of documents, and their titles, each an example for its own document.

    Args:
        collection: collection of the documents.
        per_document: sentences of each; fewer where it has fewer.
        limit: documents drawn at most; all when None.
        seed: random seed of the choice of documents and sentences.

    Raises:
        InvalidRequest: no document has a sentence or a title of its own.
    """
    drawn = sentences_of_corpus(collection, per_document=per_document, limit=limit, seed=seed)
    if not drawn.texts:
        raise InvalidRequest(
            f"no document of collection {collection.name!r} has a title, or a sentence beside others, "
            "that can serve as its query; train on judgements, or index longer documents"
        )
    examples = make_examples(collection, drawn.snapshot, drawn.texts, drawn.relevant, {})
    return replace(examples, source="documents")


@dataclass(frozen=True, slots=True)
class CorpusSentences:
    """Sentences and titles of documents, and the positions of their documents, not encoded."""

    snapshot: Snapshot
    texts: list[str]
    relevant: list[tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]]]

    @property
    def digest(self) -> str:
        """The digest of the examples that are made of them."""
        return digest_of(self.texts, self.relevant)


def sentences_of_corpus(
    collection: Collection, *, per_document: int = 2, limit: int | None = None, seed: int = 0
) -> CorpusSentences:
    """Draw the queries of `examples_from_corpus`, whose arguments these are, without encoding them."""
    snapshot = collection.snapshot
    visible = snapshot.visible()
    if limit is not None and limit < len(visible):
        visible = np.sort(np.random.default_rng(seed).choice(visible, limit, replace=False))
    position_of: dict[str, int] = {}
    titles: list[tuple[str, str]] = []

    def documents() -> Iterator[Document]:
        for start in range(0, len(visible), _READ_AT_A_TIME):
            positions = visible[start : start + _READ_AT_A_TIME]
            for position, document in zip(
                positions.tolist(), collection.store.documents(snapshot.rows(positions)), strict=True
            ):
                position_of[document.id] = position
                if document.text.strip():
                    titles.append((document.title, document.id))
                yield document

    pairs = inverse_cloze(documents(), per_document=per_document, seed=seed)
    pairs += title_queries(titles)
    relevant = [(np.array([position_of[id]], np.int64), np.ones(1, np.float32)) for _, id in pairs]
    return CorpusSentences(snapshot, [sentence for sentence, _ in pairs], relevant)
