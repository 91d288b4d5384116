"""`TextEncoder`: the encoder interface of the engine; identity of an encoder, batches, cached queries.

`QueryCache` is a least-recently-used cache of query embeddings. Its entries are outputs of the
encoder, so results are the same with and without the cache, up to the last bits in which a batch of texts
differs from the same texts one by one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Int, Int64

from dsearch.encoder.backends import DTYPES
from dsearch.errors import Command, CorruptData, EncoderMismatch, InvalidRequest
from dsearch.lru_cache import LruCache

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """Everything that determines the numbers of an embedding.

    Attributes:
        name: the user's name of the encoder: a model's name or a folder.
        revision: commit on the hub, or "" for a model from a package or a folder.
        weights_sha256: digest of all files of weights.
        pooling: pooling of token states to one vector, "mean" for example.
        max_tokens: limit above which texts are cut.
        backend: library that runs the model: "torch" or "openvino"; earlier releases had others.
        dtype: "float32" or "bfloat16"; "int8" of an earlier release.
        dimension: length of an embedding.
    """

    name: str
    revision: str
    weights_sha256: str
    pooling: str
    max_tokens: int
    backend: str
    dtype: str
    dimension: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> EncoderIdentity:
        """Read what `to_dict` wrote.

        Raises:
            CorruptData: fields are missing.
        """
        names = {field.name for field in fields(cls)}
        if missing := names - stored.keys():
            raise CorruptData(f"the stored identity of the encoder lacks {', '.join(sorted(missing))}")
        return cls(**{name: stored[name] for name in names})

    def same(self, other: EncoderIdentity) -> bool:
        """True if embeddings of both can be compared; see `require_same`."""
        try:
            self.require_same(other, "")
        except EncoderMismatch:
            return False
        return True

    def require_same(self, other: EncoderIdentity, collection: str) -> None:
        """Refuse `other` for a collection that was encoded by `self`.

        Name and back end may differ if both compute in float32 or bfloat16: the cosine is then above .9999.
        No back end computes in int8 any more: such a collection is searched by words until it is migrated.

        Raises:
            EncoderMismatch: the message names the differences and the remedy.
        """
        theirs = other.to_dict()
        free = {"name"}
        if self.dtype in DTYPES and other.dtype in DTYPES:
            free |= {"backend", "dtype"}
        differing = [
            f"{part} {_brief(value)!r} there, {_brief(theirs[part])!r} here"
            for part, value in self.to_dict().items()
            if part not in free and value != theirs[part]
        ]
        if differing:
            remedy = f"use --encoder {self.name}, or encode it again"
            if self.dtype not in DTYPES:
                remedy = (
                    f"no back end computes in {self.dtype} any more: search by words (mode keyword), or "
                    "encode it again"
                )
            raise EncoderMismatch(
                f"collection {collection!r} was encoded by {self.name!r}, not by this {other.name!r}: "
                f"{'; '.join(differing)}; {remedy}",
                hint=Command("migrate", ("-c", collection, "--encoder", other.name)),
            )


def _brief(value: object) -> object:
    """A digest by its beginning, which tells two apart; any other value as it is."""
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else value


Role = Literal["query", "document"]


@runtime_checkable
class TextEncoder(Protocol):
    """Encoder interface of the engine."""

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder, by which embeddings are comparable."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of queries."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of documents."""
        ...

    def embed(self, texts: Sequence[str], role: Role) -> Float[Tensor, "texts encoder_dim"]:
        """Unit embeddings as part of the graph: gradients reach the encoder's weights."""
        ...


# Texts encoded at a time. On a CPU more of them leave its cache; on a GPU fewer leave most of it idle.
CPU_BATCH, GPU_BATCH = 32, 256


def default_batch_size(device: str) -> int:
    """Return the number of texts encoded at a time on a device, "cpu" or "cuda:1"."""
    return GPU_BATCH if device.partition(":")[0] == "cuda" else CPU_BATCH


def length_sorted_batches(
    lengths: Int[np.ndarray, " texts"], batch_size: int, *, tokens: int | None = None, seed: int = 0
) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Positions of texts, batch by batch; each position once.

    A batch is padded to its longest text, so it has texts of similar length. The order of batches is random
    (by `seed`): with the long ones last, estimates of the remaining time would be too short.

    Args:
        lengths: of the texts, in tokens.
        batch_size: texts of a batch at most.
        tokens: padded tokens of a batch at most, if it has more than one text; None for any number.
        seed: of the order.
    """
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    ends = [len(order)]  # from the longest texts down
    while ends[-1] > 0:
        longest = max(1, int(lengths[order[ends[-1] - 1]]))
        texts = batch_size if tokens is None else min(batch_size, max(1, tokens // longest))
        ends.append(max(0, ends[-1] - texts))
    batches = [slice(start, end) for end, start in itertools.pairwise(ends)]
    if len(batches) > 1:
        np.random.default_rng(seed).shuffle(batches)
    for batch in batches:
        yield order[batch]


_OVERHEAD_BYTES = 256  # of an entry, beside its text and its numbers

Encode = Callable[[Sequence[str]], Float32[np.ndarray, "texts encoder_dim"]]


class QueryCache:
    """LRU cache, safe in many threads; several may encode the same new text at once, with equal results.

    Args:
        max_bytes: largest size of texts and embeddings, bookkeeping included; 0 disables the cache.
        on_encode: callback with the seconds of each call of the encoder.
    """

    def __init__(self, max_bytes: int, on_encode: Callable[[float], None] | None = None):
        if max_bytes < 0:
            raise InvalidRequest(f"max_bytes={max_bytes}; use a number of at least 0")
        self.max_bytes = max_bytes
        self.on_encode = on_encode
        self.hits = 0
        self.misses = 0
        self._counting = threading.Lock()
        self._states = LruCache[tuple[Hashable, str], Float32[np.ndarray, " encoder_dim"]](
            max_bytes=max_bytes, size_of=_size
        )

    def __len__(self) -> int:
        return len(self._states)

    @property
    def bytes(self) -> int:
        """Size of what is kept."""
        return self._states.bytes

    def states(
        self, encoder: Hashable, texts: Sequence[str], encode: Encode
    ) -> Float32[np.ndarray, "texts encoder_dim"]:
        """The embeddings of texts; those that are not kept are encoded, each text once, in one call.

        Args:
            encoder: key of the encoder: its identity and its version.
            texts: the queries.
            encode: the encoder.
        """
        keys = [(encoder, text) for text in texts]
        states = self._states.get_all(keys)
        missing = [key for key in keys if key not in states]
        with self._counting:
            self.hits += len(keys) - len(missing)
            self.misses += len(missing)
        new = list(dict.fromkeys(missing))
        if new or not keys:
            started = time.perf_counter()
            encoded = encode([text for _, text in new])
            if self.on_encode is not None:
                self.on_encode(time.perf_counter() - started)
            if self.max_bytes:  # a row of its own: a view would keep the whole batch
                self._states.put_all({key: row.copy() for key, row in zip(new, encoded, strict=True)})
            if len(new) == len(keys):
                return encoded
            states.update(zip(new, encoded, strict=True))
        return np.array([states[key] for key in keys])

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()


def _size(key: tuple[Hashable, str], row: Float32[np.ndarray, " encoder_dim"]) -> int:
    return len(key[1].encode()) + row.nbytes + _OVERHEAD_BYTES


def require_tokens(max_tokens: int, longest: int | None, name: str) -> None:
    """Refuse a limit of tokens that the encoder `name` cannot have.

    Raises:
        InvalidRequest.
    """
    if not 1 <= max_tokens <= (longest or max_tokens):
        allowed = "at least 1" if longest is None else f"1 to {longest}"
        raise InvalidRequest(f"max_tokens={max_tokens}; {name} takes {allowed}")
