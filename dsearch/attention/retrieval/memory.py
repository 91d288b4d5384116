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

Rows of outcomes and clicks have contributors, whose share of the attention is bounded (contributors.py).
Grades below 0 are of documents that were seen and left.

The idea is that of key-value memory networks (Miller et al. 2016, arXiv:1606.03126, eq. 1 to 4) with fixed
keys and values, and of nearest-neighbour language models (Khandelwal et al. 2020, arXiv:1911.00172), which
attend to the nearest ones as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int8, Int64
from torch import Tensor, nn

from dsearch.attention.recall import NearestKeys, RowArrays, by_query, in_eight_bits
from dsearch.attention.retrieval.contributors import TRUSTED, all_trusted, capped
from dsearch.attention.scores import unit
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.products import product
from dsearch.types import query_name

NEAREST = 64  # past queries that share the attention of a query
NEIGHBOURS = 5
LENDING = 0.03  # temperature of the borrowing weights, chosen on training queries (guide decisions)
LENDING_LEVEL = 0.5  # cosine of the null key of borrowing: of judged documents that are less alike, little
ALIKE = 0.98  # cosine from which two queries count as the same one
START_TEMPERATURE, START_NULL_LEVEL = 0.05, 0.5
_BLOCK = 8192  # keys that are numbers of full length together


class Recalled(NamedTuple):
    """The past queries that some queries attend to.

    Attributes:
        rows: their numbers.
        weights: γ a of each; the null key has the rest.
        relevance: γ r of each judged document.
    """

    rows: Int64[Tensor, "batch near"]
    weights: Float[Tensor, "batch near"]
    relevance: Float[Tensor, "batch documents"]


class QueryMemory(nn.Module):
    """Judged queries and their documents; γ, τ and c are its parameters.

    Args:
        states: embeddings of the past queries; there may be none, then nothing changes.
        embeddings: embeddings of the judged documents.
        rows: rows of these documents in the store.
        of_query: the query of each grade, as an index.
        of_document: the document of each grade, as an index.
        grades: grades other than 0, of each query one above 0; they are divided by the best of their query.
        texts: texts of the queries, for explanations, "" if one must not be kept; None if none may.
        inserted: true for grades that were added after the memory was fitted; None: for none.
        contributors: number of the contributor of each query, or `TRUSTED`; None: `TRUSTED` for all.
        strength: γ.
        temperature: τ.
        null_level: c.
        lending: λ.

    Attributes:
        index: finds the nearest of many past queries; None compares all of them.
        lenders: the same for judged documents.

    Raises:
        DimensionMismatch: states and embeddings of different lengths.
        InvalidRequest: a query without a grade above 0; an index, τ or λ out of range.
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
        contributors: Int64[np.ndarray, " queries"] | None = None,
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
            raise InvalidRequest(f"{len(texts)} texts for {len(states)} queries; give one each")
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
                "contributors": all_trusted(len(states)) if contributors is None else contributors,
                **by_query(of_query, of_document, grades, later, len(states)),
            },
            texts,
            (strength, temperature, null_level, lending),
        )

    def _fill(
        self,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: tuple[float, float, float, float],
        indexes: tuple[NearestKeys | None, NearestKeys | None] = (None, None),
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            self.register_buffer(name, torch.as_tensor(part), persistent=False)
        self.texts = None if texts is None else list(texts)
        self.index, self.lenders = indexes
        self._capped = bool((self.contributors != TRUSTED).any())
        self._arrays: RowArrays | None = None
        self._set(setting)

    def _set(self, setting: tuple[float, float, float, float]) -> None:
        strength, temperature, null_level, self.lending = setting
        self.strength = nn.Parameter(torch.tensor(float(strength)))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.null_level = nn.Parameter(torch.tensor(float(null_level)))

    keys: Int8[Tensor, "queries encoder_dim"]
    key_scales: Float[Tensor, " queries"]
    codes: Int8[Tensor, "documents encoder_dim"]
    scales: Float[Tensor, " documents"]
    rows: Int64[Tensor, " documents"]
    of_query: Int64[Tensor, " grades"]
    of_document: Int64[Tensor, " grades"]
    grades: Float[Tensor, " grades"]
    inserted: Bool[Tensor, " grades"]
    starts: Int64[Tensor, " ends"]
    contributors: Int64[Tensor, " queries"]

    @classmethod
    def of_parts(
        cls,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: tuple[float, float, float, float],
    ) -> QueryMemory:
        """Restore a memory from what `parts` gave, with (γ, τ, c, λ)."""
        memory = cls.__new__(cls)
        memory._fill(parts, texts, setting)
        return memory

    def parts(self) -> dict[str, np.ndarray]:
        """Everything but texts and setting, as arrays."""
        return {name: buffer.detach().cpu().numpy() for name, buffer in self.named_buffers()}

    @property
    def setting(self) -> tuple[float, float, float, float]:
        """γ, τ, c and λ."""
        temperature = self.log_temperature.exp().item()
        return self.strength.item(), temperature, self.null_level.item(), self.lending

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def documents(self) -> int:
        """Number of judged documents."""
        return len(self.rows)

    @property
    def states(self) -> Float[Tensor, "queries encoder_dim"]:
        """Past queries at unit length, as they were rounded."""
        return self.keys.to(self.key_scales) * self.key_scales[:, None]

    @property
    def embeddings(self) -> Float[Tensor, "documents encoder_dim"]:
        """Embeddings of the judged documents, as they were rounded."""
        return self.codes.to(self.scales) * self.scales[:, None]

    def attention(
        self, states: Float[Tensor, "batch encoder_dim"], *, above: float | None = None
    ) -> tuple[Int64[Tensor, "batch near"], Float[Tensor, "batch near"]]:
        """The nearest past queries and a of each; the null key has the rest.

        Args:
            states: query embeddings.
            above: past queries of at least this cosine are left out; None leaves none out.
        """
        if above is None and (served := self._served(states)) is not None:
            rows, weights = served.attention(states.numpy(), *self._search())
            return torch.as_tensor(rows), torch.as_tensor(weights)
        rows, cosines = self._nearest(unit(states), above)
        logits = cosines / self.log_temperature.exp()
        null = (self.null_level / self.log_temperature.exp()).to(logits).expand(len(states), 1)
        weights = torch.cat([logits, null], dim=1).softmax(-1)[:, :-1]
        return rows, capped(weights, self.contributors[rows]) if self._capped else weights

    def forward(self, states: Float[Tensor, "batch encoder_dim"], *, above: float | None = None) -> Recalled:
        """Recall past queries, with γ a of each and γ r of the documents; see `attention`."""
        if above is None and (served := self._served(states)) is not None:
            past, parts = served.attention(states.numpy(), *self._search())
            parts = parts * np.float32(self.strength.item())
            every = (past, parts, served.relevance(past, parts))
            return Recalled(*map(torch.as_tensor, every))
        rows, weights = self.attention(states, above=above)
        weights = self.strength * weights
        return Recalled(rows, weights, self.relevance(rows, weights))

    def _served(self, states: Float[Tensor, "batch encoder_dim"]) -> RowArrays | None:
        """The rows as arrays, where an index finds them and nothing has a gradient; None elsewhere."""
        on_cpu = states.is_cpu and self.keys.is_cpu and states.dtype == torch.float32
        if self.index is None or not on_cpu or torch.is_grad_enabled():
            return None
        if self._arrays is None:
            parts = {name: part for name, part in self.parts().items() if name in RowArrays._fields}
            contributors = parts.pop("contributors")
            self._arrays = RowArrays(
                **parts, contributors=contributors if self._capped else None, documents=self.documents
            )
        return self._arrays

    def _search(self) -> tuple[NearestKeys, int, float, float]:
        """Arguments of `RowArrays.attention` beside the queries."""
        assert self.index is not None
        _, temperature, null_level, _ = self.setting
        return self.index, min(NEAREST, len(self)), temperature, null_level

    def relevance(
        self, rows: Int64[Tensor, "batch near"], weights: Float[Tensor, "batch near"]
    ) -> Float[Tensor, "batch documents"]:
        """Σ_i weight_i R_ij of each judged document j."""
        batch, near = rows.shape
        # Indices have no gradients, and NumPy takes a tenth of the time for a few hundred of them.
        starts, past = self.starts.cpu().numpy(), rows.flatten().cpu().numpy()
        first = starts[past]
        counts = starts[past + 1] - first
        owners = np.repeat(np.arange(batch * near), counts)
        pairs = torch.as_tensor(np.arange(len(owners)) + (first - (counts.cumsum() - counts))[owners])
        lines = torch.as_tensor(owners // max(near, 1) * self.documents).to(rows.device)
        pairs, of_row = pairs.to(rows.device), torch.as_tensor(owners).to(rows.device)
        parts = weights.flatten()[of_row] * self.grades[pairs].to(weights)
        total = weights.new_zeros(batch * self.documents)
        return total.index_add_(0, self.of_document[pairs] + lines, parts).view(batch, self.documents)

    def _nearest(
        self, states: Float[Tensor, "batch encoder_dim"], above: float | None
    ) -> tuple[Int64[Tensor, "batch near"], Float[Tensor, "batch near"]]:
        """The nearest past queries and their cosines, −inf for those that are left out."""
        most = min(NEAREST, len(self))
        if self.index is None or above is not None:
            cosines = self._cosines(states, 0)
            if above is not None:
                cosines = cosines.masked_fill(cosines >= above, -torch.inf)
            if most == len(self):
                return torch.arange(most, device=states.device).expand(len(states), most), cosines
            best = cosines.topk(most, dim=1)
            return best.indices, best.values
        near = self.index.nearest(states.detach().float().cpu().numpy(), most)
        rows = torch.as_tensor(near).to(states.device)
        at = rows.clamp_min(0)
        numbers = at.flatten()
        keys = self.keys.index_select(0, numbers).to(states).view(*at.shape, -1)
        cosines = (keys @ states[..., None]).squeeze(-1) * self.key_scales[numbers].to(states).view(at.shape)
        if (rows < 0).any():
            cosines = cosines.masked_fill(rows < 0, -torch.inf)
        if len(self.index) < len(self):
            later = torch.arange(len(self.index), len(self), device=states.device)
            at = torch.cat([at, later.expand(len(states), -1)], dim=1)
            cosines = torch.cat([cosines, self._cosines(states, len(self.index))], dim=1)
        if cosines.shape[1] > most:
            best = cosines.topk(most, dim=1)
            at, cosines = at.gather(1, best.indices), best.values
        return at, cosines

    def _cosines(
        self, states: Float[Tensor, "batch encoder_dim"], start: int
    ) -> Float[Tensor, "batch queries"]:
        """Cosines with the past queries from `start` on."""
        ends = [*range(start, len(self), _BLOCK), len(self)]
        blocks = [states.new_zeros(len(states), 0)]
        for first, end in pairwise(ends):
            keys = self.keys[first:end].to(states) * self.key_scales[first:end].to(states)[:, None]
            blocks.append(product(states, keys))
        return torch.cat(blocks, dim=1)

    def extended(self, more: QueryMemory, *, replace: bool = True) -> QueryMemory:
        """Return this memory with the grades of another one, which count as inserted; γ, τ, c and λ stay.

        A query of the same text and contributor is one query: its grade of a document is the one of `more`,
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
            "contributors": np.concatenate([own["contributors"], other["contributors"][chosen]]),
            **by_query(of_query, of_document, grades, inserted, total),
        }
        texts = None
        if self.texts is not None and more.texts is not None:
            texts = [*self.texts, *(more.texts[int(at)] for at in chosen)]
        memory = QueryMemory.__new__(QueryMemory)
        memory._fill(parts, texts, self.setting, (self.index, self.lenders))
        return memory

    def of_inserted(self) -> QueryMemory:
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
            **{name: numbers[name][queries] for name in ("keys", "key_scales", "contributors")},
            **{name: numbers[name][documents] for name in ("codes", "scales", "rows")},
            **by_query(of_query, of_document, numbers["grades"][pairs], pairs[pairs], len(queries)),
        }
        texts = None if self.texts is None else [self.texts[int(at)] for at in queries]
        return QueryMemory.of_parts(parts, texts, (0.0, START_TEMPERATURE, START_NULL_LEVEL, 1.0))

    def with_setting(
        self, strength: float, temperature: float, null_level: float, lending: float = 1.0
    ) -> QueryMemory:
        """Return the same memory with other γ, τ, c and λ; rows are shared."""
        other = QueryMemory.__new__(QueryMemory)
        nn.Module.__init__(other)
        other.texts, other.index, other.lenders = self.texts, self.index, self.lenders
        other._capped, other._arrays = self._capped, self._arrays
        for name, buffer in self.named_buffers():
            other.register_buffer(name, buffer, persistent=False)
        other._set((strength, temperature, null_level, lending))
        return other

    def _names(self) -> dict[tuple[str | bytes, int], int]:
        """Number of the first query of each name."""
        names: dict[tuple[str | bytes, int], int] = {}
        for at, name in enumerate(self._all_names()):
            names.setdefault(name, at)
        return names

    def _all_names(self) -> Iterator[tuple[str | bytes, int]]:
        """The name of each query: text, or key where the text is not kept, and contributor."""
        keys = self.keys.cpu().numpy()
        contributors: list[int] = self.contributors.cpu().numpy().tolist()
        for at, (text, contributor) in enumerate(zip(self.texts or (), contributors, strict=True)):
            yield (query_name(text) if contributor == TRUSTED else keys[at].tobytes()), contributor


def _unit(states: Float[np.ndarray, "queries encoder_dim"]) -> Float32[np.ndarray, "queries encoder_dim"]:
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    return np.divide(states, lengths, out=np.zeros_like(states), where=lengths > 0).astype(np.float32)
