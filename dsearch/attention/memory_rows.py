"""Query memory: attention over the queries that were judged before.

Past queries are keys, their judgements are values, and a null key stands for "nothing like it was asked":

    a = softmax over i of (q · q_i / τ, c / τ)           i: the nearest past queries
    r(j) = Σ_i a_i R_ij                                  R_ij: grade of document j for query i, its best = 1
    M(q, d) = r(d) if d was judged, else λ Σ_n w_dn r(n)
    logit = (q_h · k_d + w_h b(q, d) + γ M(q, d)) / t    the same M for all heads

Query states are compared at unit length, as the encoder gives them. A document that no past query judged
borrows from its `NEIGHBOURS` nearest judged documents n, with weights w = softmax(e_d · e_n / `LENDING`): a
nearest-neighbour regression in the manner of Nadaraya and Watson. A null key at `LENDING_LEVEL` keeps
documents that are unlike all judged ones from borrowing, which matters where few are judged. λ from 0 to 1 is
chosen with γ, τ and c: where a question has one answer, its neighbours are wrong.

With γ = 0, the start, nothing changes. No number belongs to a single document or query, so τ, c and γ can be
chosen by leaving each query's own row out; `above` also leaves out rows that are nearly the same query.

Only the nearest past queries share the attention: among very many the remote ones, each with next to nothing,
would together outweigh the null key. So its cost hardly grows with their number. Keys are stored in 8 bits,
rounded once: what is served is what was evaluated.

Anybody may send outcomes and clicks. The rows of sender u, an API key or a client, share at most `KEY_SHARE`
of a query's attention; the null key gets what is cut off:

    a'_i = a_i · min(1, KEY_SHARE / Σ_{j of u} a_j)

So u changes no score by more than γ · `KEY_SHARE`, however many rows it has. Judgements are trusted: no cap.
Grades below 0 are of documents that were seen and left.

The idea is that of key-value memory networks (Miller et al. 2016, arXiv:1606.03126, eq. 1 to 4) with fixed
keys and values, and of nearest-neighbour language models (Khandelwal et al. 2020, arXiv:1911.00172), which
attend to the nearest ones as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float32, Int8, Int64

from dsearch.attention.arrays import (
    Array,
    as_like,
    at_least,
    broadcast,
    concat,
    fill,
    gather,
    numbers_of,
    on_device_of,
    places_of_largest,
    product,
    repeat,
    softmax,
    totals,
    unit,
    zeros,
)
from dsearch.errors import DimensionMismatch, InvalidRequest, amount
from dsearch.types import query_name

START_TEMPERATURE, START_NULL_LEVEL = 0.05, 0.5
TRUSTED = -1  # sender of judgements

Setting = tuple[float, float, float, float]
Indexes = tuple["NearestKeys | None", "NearestKeys | None"]


@runtime_checkable
class NearestKeys(Protocol):
    """An index of the first keys of a memory."""

    def __len__(self) -> int:
        """Number of its keys."""
        ...

    def nearest(
        self, queries: Float32[np.ndarray, "batch encoder_dim"], count: int
    ) -> Int64[np.ndarray, "batch near"]:
        """Numbers of at least `count` keys, those with the largest products among them; −1 behind."""
        ...


class MemoryRows:
    """Judged queries and their documents, as tensors or NumPy arrays.

    Args:
        states: embeddings of the past queries; there may be none, then nothing changes.
        embeddings: embeddings of the judged documents.
        rows: rows of these documents in the store.
        of_query: the query of each grade, as an index.
        of_document: the document of each grade, as an index.
        grades: grades other than 0, of each query one above 0; they are divided by the best of their query.
        texts: texts of the queries, for explanations, "" if one must not be kept; None if none may.
        inserted: true for grades that were added after the memory was fitted; None: for none.
        senders: number of the API key or client that sent each query, or `TRUSTED`; None: `TRUSTED` for all.
        strength: γ.
        temperature: τ.
        null_level: c.
        lending: λ.

    Attributes:
        keys, key_scales: embeddings of the past queries at unit length, in 8 bits.
        codes, scales: embeddings of the judged documents, in 8 bits.
        starts: where the grades of each query begin, and the end.
        index: finds the nearest of many past queries; None compares all of them.
        lenders: the same for judged documents.

    Raises:
        DimensionMismatch: states and embeddings of different lengths.
        InvalidRequest: a query without a grade above 0; an index, τ or λ out of range.
    """

    keys: Int8[Array, "queries encoder_dim"]
    key_scales: Float[Array, " queries"]
    codes: Int8[Array, "documents encoder_dim"]
    scales: Float[Array, " documents"]
    rows: Int64[Array, " documents"]
    of_query: Int64[Array, " grades"]
    of_document: Int64[Array, " grades"]
    grades: Float[Array, " grades"]
    inserted: Bool[Array, " grades"]
    starts: Int64[Array, " ends"]
    senders: Int64[Array, " queries"]
    texts: list[str] | None
    index: NearestKeys | None
    lenders: NearestKeys | None
    strength: Any
    null_level: Any
    lending: float
    _capped: bool

    def __init__(
        self,
        states: Float[np.ndarray, "queries encoder_dim"],
        embeddings: Float[np.ndarray, "documents encoder_dim"],
        rows: Int64[np.ndarray, " documents"],
        of_query: Int64[np.ndarray, " grades"],
        of_document: Int64[np.ndarray, " grades"],
        grades: Float[np.ndarray, " grades"],
        *,
        texts: Sequence[str] | None = None,
        inserted: Bool[np.ndarray, " grades"] | None = None,
        senders: Int64[np.ndarray, " queries"] | None = None,
        strength: float = 0.0,
        temperature: float = START_TEMPERATURE,
        null_level: float = START_NULL_LEVEL,
        lending: float = 1.0,
    ):
        if states.shape[1] != embeddings.shape[1]:
            lengths = f"query states of {states.shape[1]} numbers and documents of {embeddings.shape[1]}"
            raise DimensionMismatch(lengths)
        judged = np.unique(of_query[grades > 0])
        if not (np.isfinite(grades) & (grades != 0) & np.isin(of_query, judged)).all():
            raise InvalidRequest("a query memory needs finite grades above 0; give judged queries")
        if not 0 < temperature < math.inf:
            raise InvalidRequest(f"temperature={temperature}; use a number above 0")
        if not 0 <= lending <= 1:
            raise InvalidRequest(f"lending={lending}; use a number from 0 to 1")
        sized = ("of_query", of_query, len(states)), ("of_document", of_document, len(rows))
        for name, indices, size in sized:
            outside = len(indices) and (indices.min() < 0 or indices.max() >= size)
            if len(indices) != len(grades) or outside:
                raise InvalidRequest(f"{name}: give an index from 0 to {size - 1} for each grade")
        if texts is not None and len(texts) != len(states):
            raise InvalidRequest(
                f"{amount(len(texts), 'text')} for {amount(len(states), 'query')}; give one each"
            )
        keys, key_scales = in_eight_bits(_unit(states))
        codes, scales = in_eight_bits(embeddings)
        later = np.zeros(len(grades), bool) if inserted is None else inserted
        self._fill(
            {
                "keys": keys,
                "key_scales": key_scales,
                "codes": codes,
                "scales": scales,
                "rows": rows.astype(np.int64),
                "senders": all_trusted(len(states)) if senders is None else senders,
                **by_query(of_query, of_document, grades, later, len(states)),
            },
            texts,
            (strength, temperature, null_level, lending),
        )

    def _fill(
        self,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: Setting,
        indexes: Indexes = (None, None),
    ) -> None:
        """Take parts by their names, texts, (γ, τ, c, λ), and indexes of queries and documents."""
        raise NotImplementedError

    @classmethod
    def of_parts(
        cls,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: Setting,
        indexes: Indexes = (None, None),
    ) -> Self:
        """Restore a memory from what `parts` gave, with (γ, τ, c, λ)."""
        memory = cls.__new__(cls)
        memory._fill(parts, texts, setting, indexes)
        return memory

    @classmethod
    def sharing(cls, other: MemoryRows) -> Self:
        """Return another memory as one of this class; rows and indexes are shared."""
        return cls.of_parts(other.parts(), other.texts, other.setting, (other.index, other.lenders))

    def parts(self) -> dict[str, np.ndarray]:
        """Everything but texts and setting, as arrays."""
        raise NotImplementedError

    @property
    def temperature(self) -> Any:
        """τ."""
        raise NotImplementedError

    @property
    def setting(self) -> Setting:
        """γ, τ, c and λ."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def documents(self) -> int:
        """Number of judged documents."""
        return len(self.rows)

    @property
    def states(self) -> Float[Array, "queries encoder_dim"]:
        """Past queries at unit length, as they were rounded."""
        return as_like(self.keys, self.key_scales) * self.key_scales[:, None]

    @property
    def embeddings(self) -> Float[Array, "documents encoder_dim"]:
        """Embeddings of the judged documents, as they were rounded."""
        return as_like(self.codes, self.scales) * self.scales[:, None]

    def extended(self, more: MemoryRows, *, replace: bool = True) -> Self:
        """Return this memory with the grades of another one, which count as inserted; γ, τ, c and λ stay.

        A query of the same text and sender is one query: its grade of a document is the one of `more`,
        or without `replace` of this memory. Texts compare without case and repeated blanks; they are kept if
        both memories keep them. Queries of outcomes and clicks compare by their keys. Queries and documents
        of this memory keep their numbers, so its indexes serve the result as well.
        """
        own, other = self.parts(), more.parts()
        count, documents = len(self), self.documents
        names = {} if self.texts is None or more.texts is None else self._names()
        of_more = np.arange(count, count + len(more))
        if more.texts is not None:
            for at, name in enumerate(more._all_names()):
                of_more[at] = names.setdefault(name, int(of_more[at]))
        new = np.unique(of_more[of_more >= count])
        of_more = np.where(of_more < count, of_more, count + np.searchsorted(new, of_more))
        place = {row: at for at, row in enumerate(own["rows"].tolist())}
        of_row = np.array([place.setdefault(row, len(place)) for row in other["rows"].tolist()], np.int64)
        added = of_row >= documents
        of_query = np.concatenate([own["of_query"], of_more[other["of_query"]]])
        of_document = np.concatenate([own["of_document"], of_row[other["of_document"]]])
        grades = np.concatenate([own["grades"], other["grades"]])
        inserted = np.concatenate([own["inserted"], np.ones(len(more.grades), bool)])
        if len(new) < len(more):  # of two grades of one pair one counts
            code = of_query * len(place) + of_document
            _, first = np.unique(code[::-1] if replace else code, return_index=True)
            pairs = np.sort(len(code) - 1 - first if replace else first)
            of_query, of_document = of_query[pairs], of_document[pairs]
            grades, inserted = grades[pairs], inserted[pairs]
        chosen = new - count
        total = count + len(new)
        parts = {
            "keys": np.concatenate([own["keys"], other["keys"][chosen]]),
            "key_scales": np.concatenate([own["key_scales"], other["key_scales"][chosen]]),
            "codes": np.concatenate([own["codes"], other["codes"][added]]),
            "scales": np.concatenate([own["scales"], other["scales"][added]]),
            "rows": np.concatenate([own["rows"], other["rows"][added]]),
            "senders": np.concatenate([own["senders"], other["senders"][chosen]]),
            **by_query(of_query, of_document, grades, inserted, total),
        }
        texts = None
        if self.texts is not None and more.texts is not None:
            texts = [*self.texts, *(more.texts[int(at)] for at in chosen)]
        return self.of_parts(parts, texts, self.setting, (self.index, self.lenders))

    def of_inserted(self) -> Self:
        """Return the grades that were inserted, as a memory of their own.

        Raises:
            InvalidRequest: none was.
        """
        numbers = self.parts()
        pairs = numbers["inserted"]
        if not pairs.any():
            raise InvalidRequest("no query was inserted into this memory")
        queries, of_query = np.unique(numbers["of_query"][pairs], return_inverse=True)
        documents, of_document = np.unique(numbers["of_document"][pairs], return_inverse=True)
        parts = {
            **{name: numbers[name][queries] for name in ("keys", "key_scales", "senders")},
            **{name: numbers[name][documents] for name in ("codes", "scales", "rows")},
            **by_query(of_query, of_document, numbers["grades"][pairs], pairs[pairs], len(queries)),
        }
        texts = None if self.texts is None else [self.texts[int(at)] for at in queries]
        return self.of_parts(parts, texts, (0.0, START_TEMPERATURE, START_NULL_LEVEL, 1.0))

    def _names(self) -> dict[tuple[str | bytes, int], int]:
        """Number of the first query of each name."""
        names: dict[tuple[str | bytes, int], int] = {}
        for at, name in enumerate(self._all_names()):
            names.setdefault(name, at)
        return names

    def _all_names(self) -> Iterator[tuple[str | bytes, int]]:
        """The name of each query: text, or key where the text is not kept, and sender."""
        keys = numbers_of(self.keys)
        senders: list[int] = numbers_of(self.senders).tolist()
        for at, (text, sender) in enumerate(zip(self.texts or (), senders, strict=True)):
            yield (query_name(text) if sender == TRUSTED else keys[at].tobytes()), sender

    def recalled(self, states: Float[Array, "batch encoder_dim"], *, above: float | None = None) -> Recalled:
        """Recall past queries, with γ a of each and γ r of the documents; see `attention`."""
        rows, weights = self.attention(states, above=above)
        weights = self.strength * weights
        return Recalled(rows, weights, self.relevance(rows, weights))

    def attention(
        self, states: Float[Array, "batch encoder_dim"], *, above: float | None = None
    ) -> tuple[Int64[Array, "batch near"], Float[Array, "batch near"]]:
        """The nearest past queries and a of each; the null key has the rest.

        Args:
            states: query embeddings.
            above: past queries of at least this cosine are left out; None leaves none out.
        """
        rows, cosines = self._nearest(unit(states), above)
        null = zeros((len(states), 1), cosines) + self.null_level / self.temperature
        weights = softmax(concat([cosines / self.temperature, null], 1), -1)[:, :-1]
        return rows, capped(weights, self.senders[rows]) if self._capped else weights

    def relevance(
        self, rows: Int64[Array, "batch near"], weights: Float[Array, "batch near"]
    ) -> Float[Array, "batch documents"]:
        """Σ_i weight_i R_ij of each judged document j."""
        batch, near = rows.shape
        # Indices have no gradients, and NumPy takes a tenth of the time for a few hundred of them.
        starts, past = numbers_of(self.starts), numbers_of(rows).ravel()
        first = starts[past]
        counts = starts[past + 1] - first
        ends = counts.cumsum()
        pairs = np.arange(ends[-1] if len(ends) else 0) + (first - (ends - counts)).repeat(counts)
        at = on_device_of(pairs, weights)
        parts = repeat(weights.reshape(-1), counts) * as_like(self.grades[at], weights)
        places = self.of_document[at]
        if batch > 1:
            line = np.arange(batch, dtype=np.int64).repeat(near).repeat(counts) * self.documents
            places = places + on_device_of(line, weights)
        return totals(parts, places, batch * self.documents).reshape(batch, self.documents)

    def _nearest(
        self, states: Float[Array, "batch encoder_dim"], above: float | None
    ) -> tuple[Int64[Array, "batch near"], Float[Array, "batch near"]]:
        """The nearest past queries and their cosines, −inf for those that are left out."""
        most = min(NEAREST, len(self))
        if self.index is None or above is not None:
            cosines = self._cosines(states, 0)
            if above is not None:
                cosines = fill(cosines, cosines >= above, -math.inf)
            if most == len(self):
                return broadcast(on_device_of(np.arange(most), states), cosines.shape), cosines
            best = places_of_largest(cosines, most)
            return best, gather(cosines, best, 1)
        near = self.index.nearest(numbers_of(states).astype(np.float32, copy=False), most)
        missing = near.min(initial=0) < 0
        at = np.maximum(near, 0) if missing else near
        numbers = on_device_of(at.reshape(-1), states)
        keys = as_like(self.keys[numbers], states).reshape(*at.shape, -1)
        cosines = (keys @ states[..., None])[..., 0]
        cosines = cosines * as_like(self.key_scales[numbers], states).reshape(at.shape)
        if missing:
            cosines = fill(cosines, on_device_of(near < 0, states), -math.inf)
        if len(self.index) < len(self):  # rows since it was built are compared beside it
            later = np.arange(len(self.index), len(self))
            at = np.concatenate([at, np.broadcast_to(later, (len(at), len(later)))], axis=1)
            cosines = concat([cosines, self._cosines(states, len(self.index))], 1)
        best = places_of_largest(cosines, most)
        return gather(on_device_of(at, states), best, 1), gather(cosines, best, 1)

    def _cosines(
        self, states: Float[Array, "batch encoder_dim"], start: int
    ) -> Float[Array, "batch queries"]:
        """Cosines with the past queries from `start` on."""
        ends = [*range(start, len(self), _BLOCK), len(self)]
        blocks = [zeros((len(states), 0), states)]
        for first, end in pairwise(ends):
            scales = as_like(self.key_scales[first:end], states)
            keys = as_like(self.keys[first:end], states) * scales[:, None]
            blocks.append(product(states, keys))
        return concat(blocks, 1)


def in_eight_bits(
    numbers: Float[np.ndarray, "count dim"],
) -> tuple[Int8[np.ndarray, "count dim"], Float32[np.ndarray, " count"]]:
    """Round rows to 8 bits: whole numbers, and the size of a unit for each row.

    The product of two unit vectors of 384 numbers is off by .0005.
    """
    largest = np.abs(numbers).max(axis=1, initial=0.0)
    scales = (largest / 127).astype(np.float32)
    steps = np.divide(numbers, scales[:, None], out=np.zeros(numbers.shape), where=scales[:, None] > 0)
    return np.rint(steps).astype(np.int8), scales


def by_query(
    of_query: Int64[np.ndarray, " grades"],
    of_document: Int64[np.ndarray, " grades"],
    grades: Float[np.ndarray, " grades"],
    inserted: Bool[np.ndarray, " grades"],
    queries: int,
) -> dict[str, np.ndarray]:
    """Grades in the order of their queries, the best of each 1, and where those of each query begin."""
    if len(of_query) and (of_query[1:] < of_query[:-1]).any():
        order = np.argsort(of_query, kind="stable")
        of_query, of_document = of_query[order], of_document[order]
        grades, inserted = grades[order], inserted[order]
    best = np.zeros(queries, np.float32)
    np.maximum.at(best, of_query, grades)
    return {
        "of_query": of_query.astype(np.int64),
        "of_document": of_document.astype(np.int64),
        "grades": (grades / best[of_query]).astype(np.float32),
        "inserted": inserted,
        "starts": np.searchsorted(of_query, np.arange(queries + 1)).astype(np.int64),
    }


def _unit(states: Float[np.ndarray, "queries encoder_dim"]) -> Float32[np.ndarray, "queries encoder_dim"]:
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    return np.divide(states, lengths, out=np.zeros_like(states), where=lengths > 0).astype(np.float32)


def all_trusted(queries: int) -> Int64[np.ndarray, " queries"]:
    """Senders of queries that were judged."""
    return np.full(queries, TRUSTED, np.int64)


NEAREST = 64  # past queries that share the attention of a query
NEIGHBOURS = 5
LENDING = 0.03  # temperature of the borrowing weights, chosen on training queries (guide decisions)
LENDING_LEVEL = 0.5  # cosine of the null key of borrowing: of judged documents that are less alike, little
KEY_SHARE = 0.5  # of a query's attention, at most of the rows of one sender
_BLOCK = 8192  # keys that are numbers of full length together


class Recalled(NamedTuple):
    """The past queries that some queries attend to.

    Attributes:
        rows: their numbers.
        weights: γ a of each; the null key has the rest.
        relevance: γ r of each judged document.
    """

    rows: Int64[Array, "batch near"]
    weights: Float[Array, "batch near"]
    relevance: Float[Array, "batch documents"]


class FixedMemory(MemoryRows):
    """A query memory in NumPy that does not change: it recalls as the `QueryMemory` of the same rows."""

    def _fill(
        self,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: Setting,
        indexes: Indexes = (None, None),
    ) -> None:
        for name, part in parts.items():
            setattr(self, name, part)
        self.texts = None if texts is None else list(texts)
        self.index, self.lenders = indexes
        self._capped = bool((self.senders != TRUSTED).any())
        self._parts = parts
        self.strength, self._temperature, self.null_level, self.lending = setting

    def __call__(self, states: Float[Array, "batch encoder_dim"]) -> Recalled:
        """Recall past queries; see `recalled`."""
        return self.recalled(states)

    @property
    def temperature(self) -> float:
        """τ."""
        return self._temperature

    @property
    def setting(self) -> Setting:
        """γ, τ, c and λ."""
        return self.strength, self._temperature, self.null_level, self.lending

    def parts(self) -> dict[str, np.ndarray]:
        """Everything but texts and setting, as arrays."""
        return self._parts

    def with_setting(
        self, strength: float, temperature: float, null_level: float, lending: float = 1.0
    ) -> FixedMemory:
        """Return the same memory with other γ, τ, c and λ; rows are shared."""
        other = copy(self)
        other.strength, other._temperature, other.null_level, other.lending = (
            strength,
            temperature,
            null_level,
            lending,
        )
        return other


def capped(
    weights: Float[Array, "batch near"], senders: Int64[Array, "batch near"]
) -> Float[Array, "batch near"]:
    """Attention in which no sender has more than `KEY_SHARE`; within its rows the proportions stay."""
    same = (senders[:, :, None] == senders[:, None]) & (senders != TRUSTED)[:, None]
    total = (as_like(same, weights) * weights[:, None]).sum(-1)
    return weights * (KEY_SHARE / at_least(total, KEY_SHARE))
