"""`TextEncoder`: the encoder interface of the engine; identity of an encoder, batches of texts for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Int, Int64

from dsearch.encoder.backends import CLOSE
from dsearch.errors import Command, CorruptData, EncoderMismatch

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
        backend: library that runs the model: "torch", "onnx", "openvino".
        dtype: "float32", "bfloat16" or "int8".
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
        Embeddings in int8 are comparable only with those of the same back end in int8.

        Raises:
            EncoderMismatch: the message names the differences and the remedy.
        """
        theirs = other.to_dict()
        free = {"name"}
        if self.dtype in CLOSE and other.dtype in CLOSE:
            free |= {"backend", "dtype"}
        differing = [
            f"{part} {value!r} there, {theirs[part]!r} here"
            for part, value in self.to_dict().items()
            if part not in free and value != theirs[part]
        ]
        if differing:
            how = "" if self.dtype in CLOSE else f" --backend {self.backend}, with DSEARCH_DTYPE={self.dtype}"
            raise EncoderMismatch(
                f"collection {collection!r} was encoded by {self.name!r}, not by this {other.name!r}: "
                f"{'; '.join(differing)}. Use --encoder {self.name}{how}, or encode it anew",
                hint=Command("migrate", ("-c", collection, "--encoder", other.name)),
            )


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
