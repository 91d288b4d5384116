"""`MemoryRows`: past queries and grades of a query memory, and how rows are added (formulas: recall.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float32, Int8, Int64

from dsearch.attention.arrays import Array, as_like, numbers_of
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
