"""Match of a query's text with a field of each document: a database as attention over a collection.

Scores are log K at temperature 1, K one of `dsearch.attention.string_kernels`, so soft weights are K over its
sum, and a document at K = 0 is no candidate. Numbers and booleans are compared as JSON writes them; of a list
the best entry counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.attention.string_kernels import normal_form, string_kernel
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
        self.name, self.field = name, field
        self._normal = partial(normal_form, ignore_case=ignore_case)
        self.positions = len(values)
        pairs = [(at, text) for at, value in enumerate(values) for text in _texts(value)]
        self._owners: Int64[np.ndarray, " entries"] = np.array([at for at, _ in pairs], np.int64)
        self._entries = [self._normal(text) for _, text in pairs]

    def of_all(self, texts: Sequence[str]) -> Float32[np.ndarray, "batch positions"]:
        """Compute log K of each text with the field at every position; −∞ where K is 0."""
        kernels = np.zeros((len(texts), self.positions), np.float32)
        if self._entries:
            queries = [self._normal(text) for text in texts]
            entries = string_kernel(self.name, queries, self._entries)
            for row, similarities in zip(kernels, entries, strict=True):
                np.maximum.at(row, self._owners, similarities)
        with np.errstate(divide="ignore"):
            return np.log(kernels)

    def require(self, positions: int) -> None:
        """Check that it is about a snapshot of so many positions; raises InvalidRequest."""
        if positions != self.positions:
            raise InvalidRequest(
                f"the field {self.field!r} was read for another state of the documents; make a new layer"
            )


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [text for entry in cast("list[Any]", value) for text in _texts(entry)]
    return [value if isinstance(value, str) else json.dumps(value)]
