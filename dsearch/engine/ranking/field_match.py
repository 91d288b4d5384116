"""Match of a query's text with a field of each document: a database as attention over a collection.

| score | kernel K(query, field) |
|---|---|
| `exact_match` | 1 where they are equal, else 0 |
| `prefix` | share of the field that the query is, where the field begins with the query, else 0 |
| `fuzzy` | 2 M / T: M characters of the longest common subsequence, T of both (`rapidfuzz.fuzz.ratio`) |

Scores are log K at temperature 1, so soft weights are K over its sum, and a document at K = 0 is no
candidate. Texts are compared in normal form NFC (Unicode Standard Annex #15), by
`str.casefold` too if case is ignored. Numbers and booleans are
compared as JSON writes them; of a list the best entry counts.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import InvalidRequest


class FieldMatch:
    """A field of the documents of one snapshot, to be compared with texts.

    Args:
        name: "exact_match", "fuzzy" or "prefix".
        field: its name, for messages.
        values: the field at each position; None where it is absent.
        ignore_case: whether upper and lower case are the same.
    """

    def __init__(self, name: str, field: str, values: Sequence[Any], *, ignore_case: bool = False):
        self.name, self.field, self._ignore_case = name, field, ignore_case
        self.positions = len(values)
        pairs = [(at, text) for at, value in enumerate(values) for text in _texts(value)]
        self._owners: Int64[np.ndarray, " entries"] = np.array([at for at, _ in pairs], np.int64)
        self._entries = [self._normal(text) for _, text in pairs]

    def of_all(self, texts: Sequence[str]) -> Float32[np.ndarray, "batch positions"]:
        """Compute log K of each text with the field at every position; −∞ where K is 0."""
        kernels = np.zeros((len(texts), self.positions), np.float32)
        if self._entries:
            queries = [self._normal(text) for text in texts]
            for row, similarities in zip(kernels, self._similarities(queries), strict=True):
                np.maximum.at(row, self._owners, similarities)
        with np.errstate(divide="ignore"):
            return np.log(kernels)

    def require(self, positions: int) -> None:
        """Check that it is about a snapshot of so many positions; raises InvalidRequest."""
        if positions != self.positions:
            raise InvalidRequest(
                f"the field {self.field!r} was read for another state of the documents; make a new layer"
            )

    def _similarities(self, queries: Sequence[str]) -> Float32[np.ndarray, "batch entries"]:
        entries = self._entries
        if self.name == "fuzzy":
            from rapidfuzz import fuzz, process

            return process.cdist(queries, entries, scorer=fuzz.ratio, dtype=np.float32) / np.float32(100)
        if self.name == "prefix":
            shares = [
                [len(query) / len(text) if text and text.startswith(query) else 0.0 for text in entries]
                for query in queries
            ]
            return np.array(shares, np.float32).reshape(len(queries), len(entries))
        array = np.array(entries, object)
        equal = [np.asarray(array == query, np.float32) for query in queries]
        return np.array(equal, np.float32).reshape(len(queries), len(entries))

    def _normal(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        # Folding can undo the normal form: the standard's own order (section 3.13, D145).
        return unicodedata.normalize("NFC", text.casefold()) if self._ignore_case else text


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [text for entry in cast("list[Any]", value) for text in _texts(entry)]
    return [value if isinstance(value, str) else json.dumps(value)]
