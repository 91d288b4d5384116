"""Rows that a filter matches now, by the SQL that it is compiled to."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int64

from dsearch.store import parse_filter
from dsearch.store.filters import compile_filter
from dsearch.store.reader import Reader


def matching_rows(store: Reader, filter: Any) -> Int64[np.ndarray, " rows"]:
    """The searchable rows that a filter matches, ascending."""
    condition, parameters = compile_filter(parse_filter(filter))
    query = (
        "SELECT row FROM document NOT INDEXED WHERE deleted IS NULL "
        f"AND row NOT IN (SELECT row FROM pending) AND {condition} ORDER BY row"
    )
    with store._readers.reading() as connection:
        return np.array([row for (row,) in connection.execute(query, parameters)], np.int64)
