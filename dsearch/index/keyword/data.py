"""Arrays of a keyword index and their files: `keyword/` in index/README.md.

Phrases are searched in documents stored as sequences of symbols: a document is the sequence of its leaves
(`tokenizer.py`), 4 bytes each. A phrase is searched only in the documents that contain all of its terms, so
the cost is the lengths of these documents. A phrase of stop words alone costs a pass over all documents.

Scores are BM25 in Lucene's form: the arithmetic of one term, for a whole corpus and for single texts.

    idf(t)     = ln(1 + (n − df(t) + 0.5) / (df(t) + 0.5))
    part(t, d) = idf(t) · tf(t, d) / (tf(t, d) + k1 · (1 − b + b · length(d) / average_length))

Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework"; Lucene's idf and its form without the
constant factor (k1 + 1) as in Kamphuis et al. 2020, "Which BM25 Do You Mean?". All of it is computed in
float64 and in one order of operations, then rounded to float32: a text gets the same bits on either path.

`reweighed` changes k1 and b of a built index without tokenizing the texts again. An index stores only part(t,
d). Term frequencies follow from it: with K(d) = k1 (1 − b + b L(d)/L̄),

    r(t, d) = part / (idf − part) = tf(t, d) / K(d)        Σ_t r(t, d) = L(d) / K(d)

and the sum gives L(d), hence K(d), hence every tf, which are whole numbers. An index of any release can be
reweighed.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, Int32, Int64

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.index.keyword.languages import import_bm25s
from dsearch.index.keyword.tokenizer import Tokenizer


def idf_of(document_frequency: int, documents: int) -> float:
    """Compute the idf of a term in `document_frequency` of `documents` documents; always above 0."""
    return math.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))


def part_of(
    idf: float | Float64[np.ndarray, " postings"],
    counts: Float64[np.ndarray, " postings"],
    lengths: Int64[np.ndarray, " postings"],
    *,
    average_length: float,
    k1: float,
    b: float,
) -> Float32[np.ndarray, " postings"]:
    """Compute part(t, d) of postings from tf, document lengths and idf (one per posting, or one for all).

    If the average length is 0, every length counts as average.
    """
    relative = b * lengths / average_length if average_length else b
    return (idf * (counts / (k1 * ((1 - b) + relative) + counts))).astype(np.float32)


def columns_of_corpus(
    documents: list[list[int]], terms: int, *, k1: float, b: float
) -> tuple[
    Int64[np.ndarray, " terms_plus_1"], Int32[np.ndarray, " postings"], Float32[np.ndarray, " postings"]
]:
    """Compute part(t, d) of all terms in all documents, a column per term: (offsets, positions, parts).

    Args:
        documents: term ids of each document, repeated as often as they occur.
        terms: number of distinct terms; ids are 0 to terms − 1 and each occurs.
        k1: saturation.
        b: weight of the length.
    """
    if terms == 0:  # bm25s would average no lengths
        return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    # float64: with float32 the last bit would depend on NumPy's promotion rules.
    scorer = import_bm25s().BM25(method="lucene", k1=k1, b=b, dtype="float64", int_dtype="int32")
    matrix = scorer.build_index_from_ids(list(range(terms)), documents, show_progress=False)
    return (
        np.asarray(matrix["indptr"], np.int64),
        np.asarray(matrix["indices"], np.int32),
        np.asarray(matrix["data"], np.float32),
    )


_POSTINGS_AT_A_TIME = 1 << 22

KEYWORD_FILES = (
    "settings.json",
    "vocabulary.json",
    "offsets.npy",
    "positions.npy",
    "parts.npy",
    "starts.npy",
    "symbols.npy",
)


@dataclass(frozen=True, slots=True)
class KeywordData:
    """A column of postings per term, and the documents as sequences of symbols.

    Attributes:
        tokenizer, k1, b, average_length: as in `KeywordIndex`.
        documents: number of documents.
        vocabulary: all symbols, ordered by id; the first `terms` are terms, the others silent words.
        terms: number of terms.
        offsets, positions, parts: term t is in documents positions[offsets[t] : offsets[t + 1]], ascending.
        sequences: the documents as symbols.
    """

    tokenizer: Tokenizer
    k1: float
    b: float
    documents: int
    average_length: float
    vocabulary: list[str]
    terms: int
    offsets: Int64[np.ndarray, " terms_plus_1"]
    positions: Int32[np.ndarray, " positions"]
    parts: Float32[np.ndarray, " parts"]
    sequences: Sequences

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: Tokenizer, *, k1: float, b: float) -> KeywordData:
        """Tokenise and count `texts`; equal texts give equal data.

        Raises:
            InvalidRequest: k1 ≤ 0 or b outside 0 to 1.
        """
        checked_weighting(k1, b)
        term_ids: dict[str, int] = {}
        silent_ids: dict[str, int] = {}
        documents: list[list[int]] = []
        starts, symbols, total = array("q", [0]), array("i"), 0
        for words in tokenizer.words(texts):
            terms = [term_ids.setdefault(term, len(term_ids)) for word in words for term in word.terms]
            documents.append(terms)
            total += len(terms)
            for word in words:
                for leaf in word.leaves:
                    term_id = term_ids.get(leaf)
                    # Silent words are numbered from −1 down until the number of terms is known.
                    symbols.append(
                        -1 - silent_ids.setdefault(leaf, len(silent_ids)) if term_id is None else term_id
                    )
            starts.append(len(symbols))
        offsets, positions, parts = columns_of_corpus(documents, len(term_ids), k1=k1, b=b)
        numbers = np.array(symbols, np.int32)
        return cls(
            tokenizer=tokenizer,
            k1=k1,
            b=b,
            documents=len(documents),
            average_length=total / len(documents) if documents else 0.0,
            vocabulary=[*term_ids, *silent_ids],
            terms=len(term_ids),
            offsets=offsets,
            positions=positions,
            parts=parts,
            sequences=Sequences(
                np.array(starts, np.int64), np.where(numbers < 0, len(term_ids) - 1 - numbers, numbers)
            ),
        )

    def part(self, start: int, stop: int) -> KeywordData:
        """Return the documents at positions `start` to `stop` − 1, with the whole vocabulary."""
        before = np.zeros(len(self.offsets), np.int64)  # postings of the part that come before each column
        blocks: list[np.ndarray] = []
        done = 0
        for first in range(0, len(self.positions), _POSTINGS_AT_A_TIME):
            block = self.positions[first : first + _POSTINGS_AT_A_TIME]
            inside = (block >= start) & (block < stop)
            ends = np.searchsorted(self.offsets, [first, first + len(block)], side="left")
            columns = slice(int(ends[0]), int(ends[1]) + 1)
            counted = np.concatenate([[0], np.cumsum(inside)])
            before[columns] = done + counted[np.minimum(self.offsets[columns] - first, len(block))]
            blocks.append(first + np.flatnonzero(inside))
            done += int(counted[-1])
        postings = np.concatenate([*blocks, np.zeros(0, np.int64)])
        before[np.searchsorted(self.offsets, len(self.positions), side="left") :] = done
        starts = self.sequences.starts[start : stop + 1]
        return replace(
            self,
            documents=stop - start,
            offsets=before,
            positions=(self.positions[postings] - start).astype(np.int32),
            parts=np.asarray(self.parts[postings]),
            sequences=Sequences(
                starts - starts[0], np.asarray(self.sequences.symbols[int(starts[0]) : int(starts[-1])])
            ),
        )

    def settings(self) -> dict[str, Any]:
        """Everything except arrays and vocabulary, as JSON."""
        return {
            "k1": self.k1,
            "b": self.b,
            "documents": self.documents,
            "terms": self.terms,
            "average_length": self.average_length,
            "tokenizer": self.tokenizer.settings(),
        }

    def save(self, folder: Path) -> None:
        """Write the files named in `KEYWORD_FILES` into `folder`, created if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.json").write_text(
            json.dumps(self.settings(), ensure_ascii=False, indent=1), "utf-8"
        )
        (folder / "vocabulary.json").write_text(json.dumps(self.vocabulary, ensure_ascii=False), "utf-8")
        np.save(folder / "offsets.npy", self.offsets)
        np.save(folder / "positions.npy", self.positions)
        np.save(folder / "parts.npy", self.parts)
        np.save(folder / "starts.npy", self.sequences.starts)
        np.save(folder / "symbols.npy", self.sequences.symbols)

    @classmethod
    def load(cls, folder: Path, *, mmap: bool = False) -> KeywordData:
        """Read what `save` wrote; with `mmap` postings and sequences stay on disk until they are used.

        Raises:
            CorruptData: a file is missing or inconsistent.
            UnsupportedFormat: this release, or this PyStemmer, tokenises differently.
        """
        mode = "r" if mmap else None
        try:
            settings = json.loads((folder / "settings.json").read_text("utf-8"))
            data = cls(
                tokenizer=Tokenizer.from_settings(settings["tokenizer"]),
                k1=settings["k1"],
                b=settings["b"],
                documents=settings["documents"],
                average_length=settings["average_length"],
                vocabulary=json.loads((folder / "vocabulary.json").read_text("utf-8")),
                terms=settings["terms"],
                offsets=_load(folder / "offsets.npy", None),
                positions=_load(folder / "positions.npy", mode),
                parts=_load(folder / "parts.npy", mode),
                sequences=Sequences(_load(folder / "starts.npy", None), _load(folder / "symbols.npy", mode)),
            )
            data._check()
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{folder}: not a keyword index ({error})"
            raise CorruptData(f"{problem}; build the generation again") from error
        return data

    def _check(self) -> None:
        """Check that the arrays are consistent; slices of others would silently give wrong scores."""
        starts, symbols = self.sequences.starts, self.sequences.symbols
        fit = (
            len(set(self.vocabulary)) == len(self.vocabulary) >= self.terms
            and (self.offsets.dtype, self.positions.dtype, self.parts.dtype)
            == (np.int64, np.int32, np.float32)
            and (starts.dtype, symbols.dtype) == (np.int64, np.int32)
            and self.offsets.shape == (self.terms + 1,)
            and self.positions.shape == self.parts.shape == (int(self.offsets[-1]),)
            and starts.shape == (self.documents + 1,)
            and symbols.shape == (int(starts[-1]),)
        )
        if not fit:
            raise ValueError("vocabulary and arrays do not fit each other")


def checked_weighting(k1: float, b: float) -> None:
    """Raise InvalidRequest for k1 ≤ 0 or b outside 0 to 1."""
    if not (k1 > 0 and math.isfinite(k1)):
        raise InvalidRequest(f"k1={k1}; use a number above 0, usually 0.9 to 2")
    if not 0 <= b <= 1:
        raise InvalidRequest(f"b={b}; use a number from 0 to 1, usually 0.4 to 0.75")


def _load(path: Path, mode: Any) -> np.ndarray:
    # A plain view: every slice of np.memmap is a Python object of its own, and queries take many slices.
    return np.load(path, mmap_mode=mode, allow_pickle=False).view(np.ndarray)


_SYMBOLS_AT_A_TIME = 1 << 20


class Sequences:
    """Documents as sequences: symbols[starts[d] : starts[d + 1]] are the symbols of document d."""

    def __init__(
        self, starts: Int64[np.ndarray, " documents_plus_1"], symbols: Int32[np.ndarray, " symbols"]
    ):
        self.starts = starts
        self.symbols = symbols

    def holding(
        self, phrase: Sequence[int], candidates: Int[np.ndarray, " candidates"]
    ) -> Bool[np.ndarray, " candidates"]:
        """Mask of the candidates (documents) that contain the symbols of `phrase` side by side."""
        candidates = np.asarray(candidates, np.int64)
        mask = np.zeros(len(candidates), bool)
        lengths = self.starts[candidates + 1] - self.starts[candidates]
        ends = np.cumsum(lengths)
        begin = 0
        while begin < len(candidates):  # as many documents as fit in a block, one at least
            done = int(ends[begin - 1]) if begin else 0
            stop = max(begin + 1, int(np.searchsorted(ends, done + _SYMBOLS_AT_A_TIME)))
            mask[begin:stop] = self._holding(phrase, candidates[begin:stop], lengths[begin:stop])
            begin = stop
        return mask

    def _holding(
        self,
        phrase: Sequence[int],
        candidates: Int64[np.ndarray, " block"],
        lengths: Int64[np.ndarray, " block"],
    ) -> Bool[np.ndarray, " block"]:
        owner = np.repeat(np.arange(len(candidates)), lengths)
        first = np.cumsum(lengths) - lengths
        at = np.arange(len(owner)) + (self.starts[candidates] - first)[owner]
        symbols = self.symbols[at]
        places = max(len(symbols) - len(phrase) + 1, 0)
        hit = owner[:places] == owner[len(phrase) - 1 :]  # a phrase does not run on into the next document
        for offset, symbol in enumerate(phrase):
            hit &= symbols[offset : offset + places] == symbol
        mask = np.zeros(len(candidates), bool)
        mask[owner[:places][hit]] = True
        return mask


def holds(text: Sequence[str], phrase: Sequence[str]) -> bool:
    """True if one text, given as symbols, contains the phrase; `Sequences.holding` checks many."""
    first, length = phrase[0], len(phrase)
    return any(
        text[start] == first and list(text[start : start + length]) == list(phrase)
        for start in range(len(text) - length + 1)
    )


_PARTS_AT_A_TIME = 1 << 21


def reweighed(
    data: KeywordData, *, k1: float, b: float, documents: int, frequencies: Int64[np.ndarray, " terms"]
) -> KeywordData:
    """Recompute the parts of `data` for this k1 and b, as `KeywordData.of` computes them from the texts.

    Args:
        data: built index with b below 1; with b = 1 only proportions could be recovered.
        k1: saturation, above 0.
        b: weight of the length, 0 to 1.
        documents: number of documents of the corpus, of which `data` may be a part.
        frequencies: document frequency of each term in the corpus.

    Raises:
        InvalidRequest: k1 or b out of range, or the index was built with b = 1.
    """
    checked_weighting(k1, b)
    if data.b == 1:
        raise InvalidRequest("an index built with b = 1 does not tell how often terms occur; rebuild it")
    idf = _idf(documents, frequencies)
    lengths = _lengths(data, idf)
    parts = np.empty(len(data.parts), np.float32)
    for block, holders, of_term, counts in _counted(data, idf, lengths):
        parts[block] = part_of(
            of_term, counts, lengths[holders], average_length=data.average_length, k1=k1, b=b
        )
    return replace(data, k1=k1, b=b, parts=parts)


def _idf(documents: int, frequencies: Int64[np.ndarray, " terms"]) -> Float64[np.ndarray, " terms"]:
    distinct, of_term = np.unique(frequencies, return_inverse=True)
    return np.array([idf_of(int(frequency), documents) for frequency in distinct], np.float64)[of_term]


def _lengths(data: KeywordData, idf: Float64[np.ndarray, " terms"]) -> Int64[np.ndarray, " documents"]:
    """Compute L(d) from the sum of r, then as the sum of the rounded tf."""
    relative = np.zeros(data.documents)
    for _, holders, of_term, parts in _blocks(data, idf):
        relative += np.bincount(holders, parts / (of_term - parts), data.documents)
    average = data.average_length or 1.0
    saturated = data.k1 * relative
    estimated = saturated * (1 - data.b) / np.maximum(1 - saturated * data.b / average, 1e-12)
    lengths = np.zeros(data.documents)
    for _, holders, _, counts in _counted(data, idf, estimated):
        lengths += np.bincount(holders, counts, data.documents)
    return lengths.astype(np.int64)


def _counted(
    data: KeywordData, idf: Float64[np.ndarray, " terms"], lengths: np.ndarray
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """The postings in blocks: (which, documents, idf, tf)."""
    relative = lengths / data.average_length if data.average_length else np.ones(data.documents)
    scale = data.k1 * ((1 - data.b) + data.b * relative)
    for block, holders, of_term, parts in _blocks(data, idf):
        yield block, holders, of_term, np.rint(parts / (of_term - parts) * scale[holders])


def _blocks(
    data: KeywordData, idf: Float64[np.ndarray, " terms"]
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """The postings in blocks: (which, documents, idf, parts)."""
    for first in range(0, len(data.parts), _PARTS_AT_A_TIME):
        block = slice(first, min(first + _PARTS_AT_A_TIME, len(data.parts)))
        terms = np.searchsorted(data.offsets, np.arange(block.start, block.stop), side="right") - 1
        yield block, data.positions[block], idf[terms], data.parts[block].astype(np.float64)
