"""Checks that the dense and the keyword index share: what both accept, they accept alike."""

from __future__ import annotations

import operator

import numpy as np
from jaxtyping import Bool

from dsearch.errors import InvalidRequest


def checked_k(k: int) -> int:
    """`k` as an int of at least 1.

    Raises:
        InvalidRequest: k is below 1 or not an integer.
    """
    try:
        number = operator.index(k)
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidRequest(f"k={k!r}; use an integer of at least 1")
    return number


def checked_exclude(
    exclude: Bool[np.ndarray, " documents"] | None, documents: int
) -> Bool[np.ndarray, " documents"] | None:
    """`exclude` when it is one boolean per document, None when it excludes nothing.

    Raises:
        InvalidRequest: another type or length.
    """
    if exclude is None:
        return None
    exclude = np.asarray(exclude)
    if exclude.dtype != np.bool_ or exclude.shape != (documents,):
        raise InvalidRequest(
            f"exclude of type {exclude.dtype} and shape {exclude.shape}; use booleans of shape ({documents},)"
        )
    return exclude if exclude.any() else None
