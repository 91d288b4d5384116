"""Documents with several keys, one per passage: a document's score is that of its best passage.

    score(q, d) = max_p score(q, k_p)        over the passages p of d

MaxP: Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual Neural Language Modeling"
(arXiv:1905.09217, section 3). Its gradient is that of the best passage.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.arrays import Array, is_array


def best_passages(
    scores: Float[Array, "*batch passages"], owners: Int64[Array, "*#batch passages"], documents: int
) -> Int64[Array, "*batch documents"]:
    """Index of a document's best passage: `scores.gather(-1, best_passages(…))` is MaxP, with its gradient.

    Args:
        scores: scores of all passages; passage d is the first one of document d for d < documents.
        owners: document of each passage; `documents` for padding, which belongs to no document.
        documents: number of documents, at most the number of passages.

    Returns:
        Indices of passages; of equal ones the first, and the first passage where a score is NaN.
    """
    if is_array(scores):
        return _best_of_array(scores, owners, documents)  # pyright: ignore
    import torch

    owners = owners.expand(scores.shape)
    scores = scores.detach()
    lead, count = scores.shape[:-1], scores.shape[-1]
    top = scores.new_full((*lead, documents + 1), -torch.inf).scatter_reduce(-1, owners, scores, "amax")
    numbers = torch.arange(count, device=scores.device).expand(scores.shape)
    reached = torch.where(scores == top.gather(-1, owners), numbers, count)
    first = numbers.new_full((*lead, documents + 1), count).scatter_reduce(-1, owners, reached, "amin")
    first = first[..., :documents]
    return torch.where(first == count, numbers[..., :documents], first)


def _best_of_array(
    scores: Float[np.ndarray, "*batch passages"],
    owners: Int64[np.ndarray, "*#batch passages"],
    documents: int,
) -> Int64[np.ndarray, "*batch documents"]:
    count = scores.shape[-1]
    lines = scores.reshape(-1, count)
    of_lines = np.broadcast_to(owners, scores.shape).reshape(lines.shape)
    best = np.empty((len(lines), documents), np.int64)
    for row, line, owner in zip(best, lines, of_lines, strict=True):
        top = np.full(documents + 1, -np.inf, line.dtype)
        with np.errstate(invalid="ignore"):  # NaN takes the first passage
            np.maximum.at(top, owner, line)
        reached = np.flatnonzero(line == top[owner])[::-1]  # the first one is written last
        row[:] = np.arange(documents)
        inside = reached[owner[reached] < documents]
        row[owner[inside]] = inside
    return best.reshape(*scores.shape[:-1], documents)
