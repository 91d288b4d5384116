"""`GrowingMatrix`: rows that are added to at the cost of the new ones, while readers hold what there was."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32


class GrowingMatrix:
    """Rows of numbers with room for more behind them.

    Every array that was given out is a view of the first rows, which do not change any more. One thread at a
    time may append.

    Args:
        rows: the first ones.
    """

    def __init__(self, rows: Float32[np.ndarray, "rows dim"]):
        self._array, self._used = rows, len(rows)

    def __len__(self) -> int:
        return self._used

    def appended(self, more: Float32[np.ndarray, "more dim"]) -> Float32[np.ndarray, "all dim"]:
        """All rows, `more` at the end."""
        used = self._used + len(more)
        if used > len(self._array):
            # Half as much again: each row is copied three times at most, on average.
            room = np.empty((max(used, used + used // 2), more.shape[1]), np.float32)
            room[: self._used] = self._array[: self._used]
            self._array = room
        self._array[self._used : used] = more
        self._used = used
        return self._array[:used]
