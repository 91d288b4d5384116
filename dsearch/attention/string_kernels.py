"""Kernels that compare texts: of a database's keys, and of a field of the documents of a collection.

| name | kernel K(query, key) |
|---|---|
| `exact_match` | 1 where they are equal, else 0 |
| `prefix` | share of the key that the query is, where the key begins with the query, else 0 |
| `fuzzy` | 2 M / T: M characters of the longest common subsequence, T of both (`rapidfuzz.fuzz.ratio`) |

Texts are compared in normal form NFC (Unicode Standard Annex #15), by `str.casefold` too if case is ignored.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from dsearch.errors import InvalidRequest

STRING_KERNELS = ("exact_match", "fuzzy", "prefix")


def string_kernel(
    name: str, queries: Sequence[str], keys: Sequence[str]
) -> Float32[np.ndarray, "queries keys"]:
    """K of every query with every key, in [0, 1]; texts are taken as they are, see `normal_form`.

    Raises:
        InvalidRequest: an unknown kernel.
    """
    shape = len(queries), len(keys)
    if name == "fuzzy":
        from rapidfuzz import fuzz, process

        ratios = process.cdist(queries, keys, scorer=fuzz.ratio, dtype=np.float32)
        return ratios.reshape(shape) / np.float32(100)
    if name == "prefix":
        shares = [
            [len(query) / len(key) if key and key.startswith(query) else 0.0 for key in keys]
            for query in queries
        ]
        return np.array(shares, np.float32).reshape(shape)
    if name == "exact_match":
        array = np.array(keys, object)
        return np.array([np.asarray(array == query, np.float32) for query in queries]).reshape(shape)
    raise InvalidRequest(f"kernel={name!r}; use one of {', '.join(STRING_KERNELS)}")


def normal_form(text: str, *, ignore_case: bool = False) -> str:
    """The text in normal form NFC, without its case if that is ignored."""
    text = unicodedata.normalize("NFC", text)
    # Folding can undo the normal form: the standard's own order (section 3.13, D145).
    return unicodedata.normalize("NFC", text.casefold()) if ignore_case else text
