"""Compare a back end's embeddings with those of torch in float32: cosines over texts of all lengths.

The texts are the docstrings of Python's own types, which exist on every machine. The effect of int8 on a
ranking is tested on real collections (tests/real).
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float32

from dsearch.encoder.backends import CLOSE

LEAST_CLOSE = 0.999  # minimum cosine of a back end whose embeddings may be mixed with those of torch
LEAST_INT8 = 0.98  # minimum mean cosine of a quantised back end, whose embeddings are never mixed


def agrees(dtype: str, cosines: Float32[np.ndarray, " texts"]) -> bool:
    """True if cosines with float32 reach the bound of the precision."""
    if not np.isfinite(cosines).all():
        return False
    return bool(cosines.min() >= LEAST_CLOSE if dtype in CLOSE else cosines.mean() >= LEAST_INT8)


def cosines(
    some: Float32[np.ndarray, "texts encoder_dim"], others: Float32[np.ndarray, "texts encoder_dim"]
) -> Float32[np.ndarray, " texts"]:
    """Cosines of unit embeddings, pair by pair."""
    return np.asarray((some * others).sum(1), np.float32)


@cache
def queries() -> Sequence[str]:
    """Forty short texts: first sentences."""
    sentences = dict.fromkeys(text.split(".")[0].split("\n")[0].strip()[:200] for text in _docstrings())
    return tuple(sentences)[:40]


@cache
def documents() -> Sequence[str]:
    """Forty texts, from one line to more than most windows."""
    texts = _docstrings()
    joined = [" ".join(texts[first : first + 8]) for first in range(0, len(texts) - 8, 8)]
    return tuple([text[:400] for text in texts[:16]] + [text[:900] for text in joined[:16]] + joined[16:24])


def _docstrings() -> list[str]:
    kinds = (str, bytes, list, dict, int, float, set, type, complex, memoryview)
    owners = [builtins, *kinds]
    texts = [getattr(member, "__doc__", None) for owner in owners for member in vars(owner).values()]
    return list(dict.fromkeys(text for text in texts if isinstance(text, str) and len(text) > 20))
