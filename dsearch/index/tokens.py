"""`TokenTable`: the tokens of documents, one document after the other; a folder of a generation, or memory.

    tokens/offsets.npy      int64 [n + 1]: tokens offsets[p] up to offsets[p + 1] are those of position p
           codes.npy        uint8 [tokens, width]
           spans.npy        int32 [tokens, 2]: [start, end) in characters of title, a blank and text
           present.npy      bool [n]: False for a document whose tokens were never computed
           projection.npy, steps.npy, bits.npy   the codec

A document without a word has no token and is present; a document that is not present is neither good nor bad
for the second stage.

`TokenCodec`: token states as small integers, and back.

    t    = unit(P s)                           P: principal components of token states       [m, encoder_dim]
    code = round(t / c), clipped               c: a step for each dimension, by its spread   [m]
    t'   = c · code

The step is the same for every token, so a query's inner product with t' is (c q) · code: what is stored is
only turned into numbers, never multiplied back. The components are not centred: inner products stay what they
are, as well as m dimensions can show them.

With 4 bits two dimensions share a byte: i in its lower half, i + m/2 in its upper one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt8

from dsearch.errors import CorruptData, InvalidRequest

FOLDER = "tokens"


class DocumentTokens(NamedTuple):
    """The tokens of one document.

    Attributes:
        codes: rounded states.
        spans: [start, end) of each in characters of `content_of` the document.
    """

    codes: UInt8[np.ndarray, "tokens width"]
    spans: Int32[np.ndarray, "tokens 2"]

    @classmethod
    def none(cls, width: int) -> DocumentTokens:
        """The tokens of a document without words."""
        return cls(np.zeros((0, width), np.uint8), np.zeros((0, 2), np.int32))


def content_of(title: str, text: str) -> str:
    """The characters that spans count: title, a blank, text."""
    return f"{title} {text}"


class GatheredTokens(NamedTuple):
    """The tokens of some documents in one array.

    Attributes:
        codes: of all, document by document.
        counts: tokens of each document; 0 where there is none.
        present: False where tokens are not known.
    """

    codes: UInt8[np.ndarray, "tokens width"]
    counts: Int64[np.ndarray, " documents"]
    present: Bool[np.ndarray, " documents"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """The tokens of documents at positions 0 to n − 1."""

    codec: TokenCodec
    offsets: Int64[np.ndarray, " documents_and_1"]
    codes: UInt8[np.ndarray, "tokens width"]
    spans: Int32[np.ndarray, "tokens 2"]
    present: Bool[np.ndarray, " documents"]

    def __len__(self) -> int:
        return len(self.present)

    @classmethod
    def of(cls, codec: TokenCodec, documents: Sequence[DocumentTokens | None]) -> TokenTable:
        """Put documents one after the other; None for one whose tokens are not known."""
        present = np.array([document_tokens is not None for document_tokens in documents], bool)
        all_documents = [document_tokens or DocumentTokens.none(codec.width) for document_tokens in documents]
        counts = [len(document_tokens.codes) for document_tokens in all_documents]
        return cls(
            codec,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.concatenate(
                [
                    np.zeros((0, codec.width), np.uint8),
                    *(document_tokens.codes for document_tokens in all_documents),
                ]
            ),
            np.concatenate(
                [np.zeros((0, 2), np.int32), *(document_tokens.spans for document_tokens in all_documents)]
            ),
            present,
        )

    def document(self, position: int) -> DocumentTokens | None:
        """The tokens of one document; None if they are not known."""
        if not self.present[position]:
            return None
        start, stop = self.offsets[position : position + 2].tolist()
        return DocumentTokens(np.array(self.codes[start:stop]), np.array(self.spans[start:stop]))

    def extended(self, documents: Sequence[DocumentTokens | None]) -> TokenTable:
        """Return these with further documents behind them."""
        more = TokenTable.of(self.codec, documents)
        return TokenTable(
            self.codec,
            np.concatenate([self.offsets, more.offsets[1:] + self.offsets[-1]]),
            np.concatenate([self.codes, more.codes]),
            np.concatenate([self.spans, more.spans]),
            np.concatenate([self.present, more.present]),
        )

    def gather(self, positions: Int64[np.ndarray, " documents"]) -> GatheredTokens:
        """The tokens of documents at these positions; −1 is a document that is not present."""
        if not len(self):
            nothing = np.zeros(len(positions), np.int64)
            return GatheredTokens(self.codes[:0], nothing, nothing.astype(bool))
        at = np.maximum(positions, 0)
        present = (positions >= 0) & self.present[at]
        starts = self.offsets[at]
        counts = np.where(present, self.offsets[at + 1] - starts, 0)
        pieces = [
            self.codes[start : start + count]
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
            if count
        ]
        return GatheredTokens(np.concatenate([self.codes[:0], *pieces]), counts, present)

    @classmethod
    def load(cls, folder: Path, documents: int) -> TokenTable:
        """Open what `TokenWriter` wrote; the codes stay on disk until they are used.

        Raises:
            CorruptData: the files do not fit each other, or not so many documents.
        """
        try:
            arrays = {
                name: np.load(folder / f"{name}.npy", allow_pickle=False)
                for name in ("offsets", "spans", "present", "projection", "steps", "bits")
            }
            codes = np.load(folder / "codes.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CorruptData(f"{folder}: {error}; build the generation again") from error
        codec = TokenCodec.of_arrays(arrays)
        offsets, spans, present = arrays["offsets"], arrays["spans"], arrays["present"]
        tokens = int(offsets[-1]) if offsets.shape == (documents + 1,) else -1
        if (
            codes.shape != (tokens, codec.width)
            or spans.shape != (tokens, 2)
            or present.shape != (documents,)
            or (np.diff(offsets) < 0).any()
            or (codes.dtype, spans.dtype, present.dtype) != (np.uint8, np.int32, np.bool_)
        ):
            raise CorruptData(f"{folder}: its files do not fit each other; build the generation again")
        return cls(codec, offsets, codes, spans, present)


def write_tokens(folder: Path, codec: TokenCodec, documents: Iterable[DocumentTokens | None]) -> int:
    """Write the tokens of documents, by position, into a new folder; return the number of documents.

    The codes go to the disk document by document: they may be larger than the memory.
    """
    folder.mkdir()
    counts: list[int] = []
    present: list[bool] = []
    spans: list[np.ndarray] = [np.zeros((0, 2), np.int32)]
    with open(folder / "codes.npy", "w+b") as file:
        _write_header(file, 0, codec.width)
        for document_tokens in documents:
            present.append(document_tokens is not None)
            counts.append(0 if document_tokens is None else len(document_tokens.codes))
            if document_tokens is not None and len(document_tokens.codes):
                file.write(np.ascontiguousarray(document_tokens.codes).tobytes())
                spans.append(document_tokens.spans)
        file.seek(0)
        _write_header(file, sum(counts), codec.width)
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    np.save(folder / "spans.npy", np.concatenate(spans).astype(np.int32))
    np.save(folder / "present.npy", np.array(present, bool))
    for name, array in codec.arrays().items():
        np.save(folder / f"{name}.npy", array)
    return len(counts)


def tokens_of(table: TokenTable, positions: Iterable[int]) -> Iterator[DocumentTokens | None]:
    """The tokens of documents at these positions; −1 is one that is not known."""
    for position in positions:
        yield None if position < 0 else table.document(position)


_HEADER_BYTES = 128  # of .npy version 1: whatever the number of tokens is


def _write_header(file: object, tokens: int, width: int) -> None:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({tokens}, {width}), }}"
    body = text.encode("latin1").ljust(_HEADER_BYTES - 11, b" ") + b"\n"
    file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body)  # type: ignore[attr-defined]


BITS = (4, 8)
# Of the deviation of a dimension, at which a number is clipped: near the least squared error for a normal
# distribution with 16 and 256 steps.
_CLIPPED_AT = {4: 2.7, 8: 5.0}
_LEAST_DEVIATION = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class TokenCodec:
    """Projection and rounding of token states.

    Attributes:
        projection: P, orthonormal rows.
        steps: c.
        bits: of a dimension, 4 or 8.
    """

    projection: Float32[np.ndarray, "dims encoder_dim"]
    steps: Float32[np.ndarray, " dims"]
    bits: int

    @classmethod
    def fit(cls, states: Float32[np.ndarray, "tokens encoder_dim"], *, dims: int, bits: int) -> TokenCodec:
        """Fit to token states of unit length.

        Args:
            states: some thousand; fewer leave dimensions that mean little.
            dims: m, at most encoder_dim; an even number.
            bits: 4 or 8.

        Raises:
            InvalidRequest: dims or bits out of range.
        """
        encoder_dim = states.shape[1]
        if bits not in BITS:
            raise InvalidRequest(f"bits={bits}; use 4 or 8")
        if not 2 <= dims <= encoder_dim or dims % 2:
            raise InvalidRequest(f"dims={dims}; use an even number from 2 to {encoder_dim}")
        moments = states.T.astype(np.float64) @ states / max(len(states), 1)
        _, vectors = np.linalg.eigh(moments)
        components = vectors[:, ::-1][:, :dims].T
        # A component and its negative are as good: one of them, whatever the library's choice.
        largest = np.abs(components).argmax(axis=1)
        components = components * np.sign(components[np.arange(dims), largest])[:, None]
        projection = np.ascontiguousarray(components, np.float32)
        projected = _units(states @ projection.T)
        spread = np.sqrt((projected.astype(np.float64) ** 2).mean(0)) if len(states) else np.ones(dims)
        spread = np.maximum(spread, _LEAST_DEVIATION)
        steps = _CLIPPED_AT[bits] * spread / _top(bits)
        return cls(projection, steps.astype(np.float32), bits)

    @property
    def dims(self) -> int:
        """m."""
        return len(self.steps)

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return self.dims * self.bits // 8

    def projected(
        self, states: Float32[np.ndarray, "tokens encoder_dim"]
    ) -> Float32[np.ndarray, "tokens dims"]:
        """unit(P s)."""
        return _units(states @ self.projection.T)

    def codes(self, projected: Float32[np.ndarray, "tokens dims"]) -> UInt8[np.ndarray, "tokens width"]:
        """Round projected states."""
        top = _top(self.bits)
        rounded = np.clip(np.rint(projected / self.steps), -top, top).astype(np.int16)
        if self.bits == 8:
            return rounded.astype(np.int8).view(np.uint8)
        low, high = np.split((rounded + 8).astype(np.uint8), 2, axis=1)
        return low | (high << 4)

    def numbers(self, codes: UInt8[np.ndarray, "tokens width"]) -> Float32[np.ndarray, "tokens dims"]:
        """The integers of codes, as numbers; times `steps` they are the states."""
        if self.bits == 8:
            return np.ascontiguousarray(codes).view(np.int8).astype(np.float32)
        numbers = np.empty((len(codes), self.dims), np.float32)
        half = self.dims // 2
        numbers[:, :half] = codes & 15
        numbers[:, half:] = codes >> 4
        numbers -= 8
        return numbers

    def arrays(self) -> dict[str, np.ndarray]:
        """As arrays by name, for a file."""
        return {
            "projection": self.projection,
            "steps": self.steps,
            "bits": np.array([self.bits], np.int64),
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> TokenCodec:
        """Read what `arrays` gave.

        Raises:
            CorruptData: these are no arrays of a codec.
        """
        try:
            projection, steps = arrays["projection"], arrays["steps"]
            bits = int(arrays["bits"][0])
            fits = projection.ndim == 2 and steps.shape == (len(projection),) and bits in BITS
            fits = fits and projection.dtype == steps.dtype == np.float32
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise CorruptData(f"the projection of token states cannot be read ({error})") from error
        if not fits:
            raise CorruptData(
                f"a projection of token states of shape {list(projection.shape)} with steps of "
                f"{list(steps.shape)} and {bits} bits"
            )
        return cls(projection, steps, bits)


def _top(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _units(numbers: Float32[np.ndarray, "tokens dims"]) -> Float32[np.ndarray, "tokens dims"]:
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    return (numbers / np.maximum(lengths, 1e-12)).astype(np.float32)
