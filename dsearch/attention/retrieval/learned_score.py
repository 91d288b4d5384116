"""Scores with learned parameters, by name, that a head can hold and a version can be saved with.

The name stands in the names of the tensors (`score.additive.vector`), so that a file says which score it has.
Candidates are proposed by the inner product and rescored, as for every score that is no inner product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from dsearch.attention.scores import AdditiveScore, GeneralScore, KernelScore
from dsearch.errors import InvalidRequest

_HIDDEN_DIM = 64
_MOST_HIDDEN = 4096


def additive_score(dim: int, hidden_dim: int) -> nn.Module:
    """Bahdanau's score of queries and keys of `dim` numbers."""
    return AdditiveScore(dim, dim, hidden_dim)


def gaussian_score(dim: int, hidden_dim: int) -> nn.Module:
    """A Gaussian kernel of learned width, for any size."""
    del dim, hidden_dim
    return KernelScore("gaussian")


def epanechnikov_score(dim: int, hidden_dim: int) -> nn.Module:
    """An Epanechnikov kernel of learned width, for any size."""
    del dim, hidden_dim
    return KernelScore("epanechnikov")


LEARNED_SCORES: dict[str, Callable[[int, int], nn.Module]] = {
    "additive": additive_score,
    "general": lambda dim, _: GeneralScore(dim),
    "gaussian": gaussian_score,
    "epanechnikov": epanechnikov_score,
}


def new_score(name: str, dim: int, hidden_dim: int = _HIDDEN_DIM) -> nn.ModuleDict:
    """Return a learned score under its name, at its start.

    Args:
        name: one of `LEARNED_SCORES`.
        dim: length of queries and keys.
        hidden_dim: size of the common space of an additive score.

    Raises:
        InvalidRequest: an unknown name, a size out of range.
    """
    if name not in LEARNED_SCORES:
        raise InvalidRequest(f"learned score {name[:40]!r}; use one of {', '.join(LEARNED_SCORES)}")
    if not 1 <= hidden_dim <= _MOST_HIDDEN:
        raise InvalidRequest(f"hidden_dim={hidden_dim}; use 1 to {_MOST_HIDDEN}")
    return nn.ModuleDict({name: LEARNED_SCORES[name](dim, hidden_dim)})


def score_of_module(score: object) -> nn.ModuleDict | None:
    """Return the score of a layer in the form that a head holds; None if a head cannot hold it.

    A score over queries and keys of unequal length, or a kernel that is none of `LEARNED_SCORES`, cannot.
    """
    if isinstance(score, KernelScore) and score.kernel in LEARNED_SCORES:
        return nn.ModuleDict({score.kernel: score})
    if isinstance(score, AdditiveScore):
        return nn.ModuleDict({"additive": score})
    if isinstance(score, GeneralScore):
        return nn.ModuleDict({"general": score})
    return None


def score_of_tensors(tensors: Iterable[tuple[str, Tensor]], dim: int) -> nn.ModuleDict | None:
    """Return an empty learned score with the tensors of these names; None if there are none.

    Args:
        tensors: names without `score.`, and the tensors.
        dim: length of queries and keys.

    Raises:
        InvalidRequest: an unknown score, or several.
    """
    shapes = dict(tensors)
    names = sorted({name.partition(".")[0] for name in shapes})
    if not names:
        return None
    if len(names) > 1:
        raise InvalidRequest(f"learned scores {', '.join(names)[:80]}; a head has one")
    vector = shapes.get("additive.vector")
    hidden_dim = 1 if vector is None or vector.ndim != 1 else len(vector)
    return new_score(names[0], dim, hidden_dim)
