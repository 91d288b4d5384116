"""Query memory: attention over the queries that were judged before.

Past queries are keys, their judgements are values, and a null key stands for "nothing like it was asked":

    a = softmax over i of (q · q_i / τ, c / τ)           the last entry is the null key
    r(j) = Σ_i a_i R_ij                                  R_ij: grade of document j for query i, its best = 1
    M(q, d) = r(d) if d was judged, else Σ_n w_dn r(n)
    logit = (q_h · k_d + w_h b(q, d) + γ M(q, d)) / t    the same M for all heads

Query states are compared at unit length, as the encoder gives them. A document that no past query judged
borrows from its `NEIGHBOURS` nearest judged documents n, with weights w = softmax(e_d · e_n / `LENDING`): a
nearest-neighbour regression in the manner of Nadaraya and Watson. A null key at `LENDING_LEVEL` keeps
documents that are unlike all judged ones from borrowing, which matters where few are judged.

With γ = 0, the start, nothing changes. No number belongs to a single document or query, so τ, c and γ can be
chosen by leaving each query's own row out; `above` also leaves out rows that are nearly the same query.

The idea is that of key-value memory networks (Miller et al. 2016, arXiv:1606.03126, eq. 1 to 4) with fixed
keys and values, and of nearest-neighbour language models (Khandelwal et al. 2020, arXiv:1911.00172).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn

from dsearch.attention.scores import unit
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.types import query_name

NEIGHBOURS = 5
LENDING = 0.03  # temperature of the borrowing weights, chosen on training queries (guide decisions)
LENDING_LEVEL = 0.5  # cosine of the null key of borrowing: of judged documents that are less alike, little
ALIKE = 0.98  # cosine from which two queries count as the same one
START_TEMPERATURE, START_NULL_LEVEL = 0.05, 0.5


class QueryMemory(nn.Module):
    """Judged queries and their documents; γ, τ and c are its parameters.

    Args:
        states: embeddings of the past queries.
        embeddings: embeddings of the judged documents.
        rows: rows of these documents in the store.
        of_query: the query of each grade, as an index.
        of_document: the document of each grade, as an index.
        grades: grades above 0; they are divided by the best of their query.
        texts: texts of the queries, for explanations; None if they must not be kept.
        inserted: true for grades that were added after the memory was fitted; None: for none.
        strength: γ.
        temperature: τ.
        null_level: c.

    Raises:
        DimensionMismatch: states and embeddings of different lengths.
        InvalidRequest: no grade, or one that is not above 0; an index out of range; τ not above 0.
    """

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
        strength: float = 0.0,
        temperature: float = START_TEMPERATURE,
        null_level: float = START_NULL_LEVEL,
    ):
        super().__init__()
        if states.shape[1] != embeddings.shape[1]:
            raise DimensionMismatch(
                f"query states of {states.shape[1]} numbers and documents of {embeddings.shape[1]}"
            )
        if not len(grades) or not ((grades > 0) & (grades < math.inf)).all():
            raise InvalidRequest("a query memory needs finite grades above 0; give judged queries")
        if not 0 < temperature < math.inf:
            raise InvalidRequest(f"temperature={temperature}; use a number above 0")
        for name, indices, size in (
            ("of_query", of_query, len(states)),
            ("of_document", of_document, len(rows)),
        ):
            if len(indices) != len(grades) or indices.min() < 0 or indices.max() >= size:
                raise InvalidRequest(f"{name}: give an index from 0 to {size - 1} for each grade")
        if texts is not None and len(texts) != len(states):
            raise InvalidRequest(f"{len(texts)} texts for {len(states)} queries; give one each")
        self.texts = None if texts is None else list(texts)
        # Rounded to half precision, as they are stored: what is served is what was evaluated.
        self.register_buffer("states", _rounded(_unit(states)), persistent=False)
        self.register_buffer("embeddings", _rounded(embeddings), persistent=False)
        best = np.zeros(len(states), np.float32)
        np.maximum.at(best, of_query, grades)
        shares = (grades / best[of_query]).astype(np.float32)
        self.register_buffer("rows", torch.as_tensor(rows.astype(np.int64)), persistent=False)
        self.register_buffer("of_query", torch.as_tensor(of_query.astype(np.int64)), persistent=False)
        self.register_buffer("of_document", torch.as_tensor(of_document.astype(np.int64)), persistent=False)
        self.register_buffer("grades", torch.as_tensor(shares), persistent=False)
        later = np.zeros(len(grades), bool) if inserted is None else inserted
        self.register_buffer("inserted", torch.as_tensor(later), persistent=False)
        self._matrix: Tensor | None = None
        self.strength = nn.Parameter(torch.tensor(float(strength)))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.null_level = nn.Parameter(torch.tensor(float(null_level)))

    states: Float[Tensor, "queries encoder_dim"]
    embeddings: Float[Tensor, "documents encoder_dim"]
    rows: Int64[Tensor, " documents"]
    of_query: Int64[Tensor, " grades"]
    of_document: Int64[Tensor, " grades"]
    grades: Float[Tensor, " grades"]
    inserted: Bool[Tensor, " grades"]

    def __len__(self) -> int:
        return len(self.states)

    @property
    def documents(self) -> int:
        """Number of judged documents."""
        return len(self.rows)

    def attention(
        self, states: Float[Tensor, "batch encoder_dim"], *, above: float | None = None
    ) -> Float[Tensor, "batch queries"]:
        """a of each past query; the null key has the rest.

        Args:
            states: query embeddings.
            above: past queries of at least this cosine are left out; None leaves none out.
        """
        cosines = unit(states) @ self.states.to(states).mT
        logits = cosines / self.log_temperature.exp()
        if above is not None:
            logits = logits.masked_fill(cosines >= above, -torch.inf)
        null = (self.null_level / self.log_temperature.exp()).to(logits).expand(len(states), 1)
        return torch.cat([logits, null], dim=1).softmax(-1)[:, :-1]

    def relevance(self, recalled: Float[Tensor, "batch queries"]) -> Float[Tensor, "batch documents"]:
        """Σ_i a_i R_ij of each judged document j, for what `forward` gives: γ r."""
        return (self._grades_like(recalled) @ recalled.mT).mT

    def _grades_like(self, like: Tensor) -> Float[Tensor, "documents queries"]:
        """R transposed, sparse by rows: a product with it takes a tenth of adding grade by grade."""
        matrix = self._matrix
        if matrix is None or matrix.dtype != like.dtype or matrix.device != like.device:
            at = torch.stack([self.of_document, self.of_query])
            with torch.inference_mode(False), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse")
                size = self.documents, len(self)
                sparse = torch.sparse_coo_tensor(at, self.grades.clone(), size)  # pyright: ignore[reportUnknownMemberType]
                matrix = self._matrix = sparse.coalesce().to_sparse_csr().to(like)
        return matrix

    def forward(
        self, states: Float[Tensor, "batch encoder_dim"], *, above: float | None = None
    ) -> Float[Tensor, "batch queries"]:
        """γ a of each past query; see `attention`."""
        return self.strength * self.attention(states, above=above)

    def extended(self, more: QueryMemory) -> QueryMemory:
        """Return this memory with the grades of another one, which count as inserted; γ, τ and c stay.

        A query of the same text is one query: its grade of a document is the one of `more`. Texts compare
        without case and repeated blanks. They are kept if both memories keep them.
        """
        texts = None if self.texts is None or more.texts is None else [*self.texts, *more.texts]
        keys = range(len(self) + len(more)) if texts is None else [query_name(text) for text in texts]
        place = {key: at for at, key in reversed(list(enumerate(keys)))}  # of a text's first query
        rows, first, of_row = np.unique(
            np.concatenate([self.rows.cpu(), more.rows.cpu()]), return_index=True, return_inverse=True
        )
        query = np.array([place[key] for key in keys], np.int64)[
            np.concatenate([self.of_query.cpu(), more.of_query.cpu() + len(self)])
        ]
        document = of_row[np.concatenate([self.of_document.cpu(), more.of_document.cpu() + self.documents])]
        grades = np.concatenate([self.grades.cpu(), more.grades.cpu()])
        # Of two grades of one pair the last one counts, which is the first from behind.
        _, last = np.unique((query * len(rows) + document)[::-1], return_index=True)
        pairs = np.sort(len(query) - 1 - last)
        queries, of_query = np.unique(query[pairs], return_inverse=True)
        states = torch.cat([self.states, more.states]).cpu().numpy()
        embeddings = torch.cat([self.embeddings, more.embeddings]).cpu().numpy()
        inserted = np.concatenate([self.inserted.cpu(), np.ones(len(more.grades), bool)])
        return QueryMemory(
            states[queries],
            embeddings[first],
            rows,
            of_query,
            document[pairs],
            grades[pairs],
            texts=None if texts is None else [texts[int(at)] for at in queries],
            inserted=inserted[pairs],
            strength=self.strength.item(),
            temperature=self.log_temperature.exp().item(),
            null_level=self.null_level.item(),
        )

    def of_inserted(self) -> QueryMemory:
        """Return the grades that were inserted, as a memory of their own.

        Raises:
            InvalidRequest: none was.
        """
        numbers = {name: buffer.cpu().numpy() for name, buffer in self.named_buffers()}
        pairs = numbers["inserted"]
        queries, of_query = np.unique(numbers["of_query"][pairs], return_inverse=True)
        documents, of_document = np.unique(numbers["of_document"][pairs], return_inverse=True)
        return QueryMemory(
            numbers["states"][queries],
            numbers["embeddings"][documents],
            numbers["rows"][documents],
            of_query,
            of_document,
            numbers["grades"][pairs],
            texts=None if self.texts is None else [self.texts[int(at)] for at in queries],
            inserted=numbers["inserted"][pairs],
        )

    def with_setting(self, strength: float, temperature: float, null_level: float) -> QueryMemory:
        """Return the same memory with other γ, τ and c; rows are shared."""
        other = QueryMemory.__new__(QueryMemory)
        nn.Module.__init__(other)
        other.texts, other._matrix = self.texts, self._matrix
        for name, buffer in self.named_buffers():
            other.register_buffer(name, buffer, persistent=False)
        other.strength = nn.Parameter(torch.tensor(float(strength)))
        other.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        other.null_level = nn.Parameter(torch.tensor(float(null_level)))
        return other


def _unit(states: Float[np.ndarray, "queries encoder_dim"]) -> Float32[np.ndarray, "queries encoder_dim"]:
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    return np.divide(states, lengths, out=np.zeros_like(states), where=lengths > 0).astype(np.float32)


def _rounded(numbers: Float[np.ndarray, "count dim"]) -> Float32[Tensor, "count dim"]:
    return torch.as_tensor(numbers.astype(np.float16).astype(np.float32))
