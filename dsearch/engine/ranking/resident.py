"""`ResidentEmbeddings`: a snapshot's embeddings on the device of a layer.

Dense candidates are then found there, exactly, by `dsearch.attention.top_k`, and candidates and blocks of all
documents are gathered there: no index is asked and no embedding crosses from the host. Positions do, since
filters, keywords and ids live there.

Memory: keys × dimension × 4 bytes in float32, 2 in bfloat16, which rounds embeddings to 8 bits. The keys are
one for each position, and the further passages of long documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from dsearch.attention import top_k
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.errors import Conflict, InvalidRequest

Resident = Literal["float32", "bfloat16"]
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ROWS = 65_536  # copied, or scored, at once


class ResidentEmbeddings(nn.Module):
    """Embeddings of all positions and passages of a snapshot; part of no `state_dict`, moved with its layer.

    Args:
        snapshot: the documents.
        dtype: "float32" or "bfloat16".
        device: where they lie.

    Raises:
        InvalidRequest: another dtype.
    """

    embeddings: Float[Tensor, "positions encoder_dim"]
    further: Float[Tensor, "further encoder_dim"]
    owners: Int64[Tensor, " further"]

    def __init__(self, snapshot: Snapshot, dtype: Resident = "float32", device: torch.device | str = "cpu"):
        super().__init__()
        if dtype not in _TYPES:
            raise InvalidRequest(f"resident={dtype!r}; use float32 or bfloat16, or leave it out")
        passages, dim = snapshot.passages, snapshot.generation.embeddings.shape[1]
        parts: dict[str, tuple[int, Callable[..., np.ndarray]]] = {}
        parts |= {
            "embeddings": (snapshot.positions, snapshot.embeddings),
            "further": (0, snapshot.embeddings),
        }
        owners = np.empty(0, np.int64)
        if passages is not None:
            parts["further"], owners = (len(passages), passages.embeddings), passages.owners
        for name, (count, read) in parts.items():
            table = torch.empty(count, dim, dtype=_TYPES[dtype], device=device)
            for start in range(0, count, _ROWS):
                rows = np.arange(start, min(start + _ROWS, count))
                table[start : start + _ROWS] = torch.as_tensor(read(rows))
            self.register_buffer(name, table, persistent=False)
        self.register_buffer("owners", torch.as_tensor(owners, device=device), persistent=False)
        self.state = (snapshot.generation.number, snapshot.positions)

    @property
    def size_bytes(self) -> int:
        """Bytes on the device."""
        return self.embeddings.nbytes + self.further.nbytes + self.owners.nbytes

    def require(self, snapshot: Snapshot) -> None:
        """Raise Conflict for a snapshot that these embeddings are not of."""
        if self.state != (snapshot.generation.number, snapshot.positions):
            raise Conflict("resident embeddings of another state of the documents; refresh() the layer")

    def rows(
        self, positions: Int64[np.ndarray, "batch candidates"], like: Tensor
    ) -> Float[Tensor, "batch candidates encoder_dim"]:
        """Embeddings at positions (a long document's first), zeros at −1, with the type of `like`."""
        return _at(self.embeddings, positions, like)

    def passages(
        self, further: Int64[np.ndarray, "*shape"], like: Tensor
    ) -> Float[Tensor, "*shape encoder_dim"]:
        """Embeddings of further passages by number, zeros at −1."""
        return _at(self.further, further, like)

    def keys(self, keys: Int64[np.ndarray, "*shape"], like: Tensor) -> Float[Tensor, "*shape encoder_dim"]:
        """Embeddings of keys, numbered as in `Snapshot.key_embeddings`."""
        positions = len(self.embeddings)
        first = _at(self.embeddings, np.where(keys < positions, keys, NONE), like)
        return first + self.passages(np.where(keys < positions, NONE, keys - positions), like)

    def nearest(
        self, folded: Float[Tensor, "batch heads encoder_dim"], snapshot: Snapshot, k: int
    ) -> Int64[np.ndarray, "queries found"]:
        """Positions of the best visible documents of each query and head, −1 behind the last.

        A long document scores as its best passage. As from an index, documents newer than it are candidates
        beside the best.
        """
        queries = folded.detach().flatten(0, 1).to(self.embeddings.dtype)
        built = self.embeddings[: snapshot.built]
        if snapshot.excluded is None and len(self.further) == 0:
            best = top_k(queries, built, k).rows
        else:
            hidden = np.zeros(0, bool) if snapshot.excluded is None else snapshot.excluded[: len(built)]
            best = _best_visible(queries, built, self.further, self.owners, torch.as_tensor(hidden), k)
        visible, nearest = snapshot.visible(), best.cpu().numpy()
        newer = visible[visible >= snapshot.built]
        nearest = np.concatenate([nearest, np.tile(newer, (len(queries), 1))], axis=1)
        if (idle := ~(queries != 0).any(1).cpu().numpy()).any():  # they tie with every document
            first = visible[: min(k, nearest.shape[1])]
            nearest[idle] = np.pad(first, (0, nearest.shape[1] - len(first)), constant_values=NONE)
        return nearest


def _best_visible(
    queries: Float[Tensor, "queries encoder_dim"],
    embeddings: Float[Tensor, "documents encoder_dim"],
    further: Float[Tensor, "further encoder_dim"],
    owners: Int64[Tensor, " further"],
    hidden: Bool[Tensor, " hidden"],
    k: int,
) -> Int64[Tensor, "queries found"]:
    """Rows of the k largest products that are not hidden, −1 behind the last; in blocks.

    `hidden` is empty if nothing is.
    """
    scores = queries.new_empty(len(queries), 0, dtype=torch.float32)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    hidden = hidden.to(queries.device)
    for start in range(0, len(embeddings), _ROWS):
        part = slice(start, start + _ROWS)
        block = queries.float() @ embeddings[part].float().mT
        bounds = owners.new_tensor([start, start + block.shape[1]])
        low, high = (int(bound) for bound in torch.searchsorted(owners, bounds))
        if high > low:
            others = queries.float() @ further[low:high].float().mT
            at = (owners[low:high] - start).expand_as(others)
            block = block.scatter_reduce(1, at, others, "amax")
        if len(hidden):
            block = block.masked_fill(hidden[part], -torch.inf)
        best = block.topk(min(k, block.shape[1]), dim=1)
        both = torch.cat([scores, best.values], 1).sort(dim=1, descending=True, stable=True)
        rows = torch.cat([rows, best.indices + start], 1).gather(1, both.indices[:, :k])
        scores = both.values[:, :k]
    return rows.masked_fill(scores == -torch.inf, NONE)


def _at(
    table: Float[Tensor, "rows encoder_dim"], numbers: Int64[np.ndarray, "*shape"], like: Tensor
) -> Float[Tensor, "*shape encoder_dim"]:
    """Rows of a table, zeros at −1, with the type of `like`."""
    at = torch.as_tensor(numbers, device=table.device)
    if len(table) == 0:
        return like.new_zeros(*numbers.shape, table.shape[1])
    return table[at.clamp_min(0)].to(like).masked_fill((at == NONE).unsqueeze(-1), 0.0)
