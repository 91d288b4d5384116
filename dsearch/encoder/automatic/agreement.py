"""Compare a back end's embeddings and token states with those of torch in float32: cosines over texts.

The texts, of all lengths, are the docstrings of Python's own types, which exist on every machine.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float32

from dsearch.encoder.token_states import TextTokens

LEAST_CLOSE = 0.999  # minimum cosine of a back end whose embeddings may be mixed with those of torch
LEAST_STATES = 0.9999  # minimum of a text's mean cosine of token states; of a single token, LEAST_CLOSE


def agrees(cosines: Float32[np.ndarray, " texts"]) -> bool:
    """True if cosines with torch in float32 reach the bound."""
    return bool(np.isfinite(cosines).all() and cosines.min() >= LEAST_CLOSE)


def cosines(
    some: Float32[np.ndarray, "texts encoder_dim"], others: Float32[np.ndarray, "texts encoder_dim"]
) -> Float32[np.ndarray, " texts"]:
    """Cosines of unit embeddings, pair by pair."""
    return np.asarray((some * others).sum(1), np.float32)


def states_agreement(some: Sequence[TextTokens], others: Sequence[TextTokens]) -> dict[str, Any]:
    """Agreement of token states, as an export describes it.

    Returns:
        least: smallest cosine of a token.
        mean: smallest mean over the tokens of a text.
        agrees: True if these reach the bounds, and the tokens have the same places.
    """
    pairs = list(zip(some, others, strict=True))
    if any(not np.array_equal(first.spans, second.spans) for first, second in pairs):
        return {"least": 0.0, "mean": 0.0, "agrees": False}
    by_text = [cosines(first.states, second.states) for first, second in pairs]
    by_text = [of_text for of_text in by_text if len(of_text)]
    every = np.concatenate(by_text)
    least = float(every.min())
    mean = min(float(of_text.mean()) for of_text in by_text)
    agree = np.isfinite(every).all() and least >= LEAST_CLOSE and mean >= LEAST_STATES
    return {"least": least, "mean": mean, "agrees": bool(agree)}


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
