"""`MonotoneField`: a number or date of the metadata as a feature that only rises, or only falls.

    x(d) = clip((v(d) − low) / (high − low), 0, 1) − 1/2          0 for a document without the field

low and high are quantiles of the collection when the weight was fitted, and are stored with it: the feature
of a document depends on no other, so shards agree and a new document has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from dsearch.errors import InvalidRequest

MOST_FIELDS = 8
LOW, HIGH = 0.05, 0.95  # quantiles
_DAY_S = 86400.0


class MonotoneField(NamedTuple):
    """A field and its scale.

    Attributes:
        name: dotted path of the metadata.
        sign: 1 if more is better, −1 if less is; 0 if judgements choose.
        low, high: values of −1/2 and of 1/2.
    """

    name: str
    sign: int
    low: float = 0.0
    high: float = 1.0

    def of(self, values: Sequence[Any]) -> Float[np.ndarray, " documents"]:
        """x of each document, by its value."""
        numbers = np.array([number_of(value) for value in values], np.float64)
        width = max(self.high - self.low, 1e-12)
        return np.nan_to_num(np.clip((numbers - self.low) / width, 0.0, 1.0) - 0.5, nan=0.0)

    def scaled(self, values: Sequence[Any]) -> MonotoneField:
        """The field with the scale of these values.

        Raises:
            InvalidRequest: fewer than two numbers or dates, or all of them equal.
        """
        numbers = np.array([number_of(value) for value in values], np.float64)
        numbers = numbers[np.isfinite(numbers)]
        low, high = np.quantile(numbers, [LOW, HIGH]).tolist() if len(numbers) else (0.0, 0.0)
        if low == high and len(numbers):
            low, high = float(numbers.min()), float(numbers.max())
        if low == high:
            raise InvalidRequest(
                f"field {self.name!r}: its numbers and dates ({len(numbers)}) do not differ; name a field "
                "that orders documents, or leave it out"
            )
        return self._replace(low=low, high=high)


def parse_fields(text: str) -> tuple[MonotoneField, ...]:
    """Fields of a list such as `+year,-price,votes`.

    Raises:
        InvalidRequest: an empty name, one that is there twice, or too many.
    """
    fields: list[MonotoneField] = []
    for part in text.split(","):
        name = part.strip()
        sign = {"+": 1, "-": -1}.get(name[:1], 0)
        fields.append(MonotoneField(name[1:].strip() if sign else name, sign))
    names = [field.name for field in fields]
    if not all(names) or len(set(names)) < len(names) or len(names) > MOST_FIELDS:
        raise InvalidRequest(
            f"monotone_fields={text[:80]!r}; use at most {MOST_FIELDS} different fields of the metadata, "
            "such as +year,-price"
        )
    return tuple(fields)


def number_of(value: Any) -> float:
    """A number, or the days of a date in ISO 8601 since 1970; NaN for anything else."""
    if isinstance(value, bool | int | float):
        return float(value)
    if not isinstance(value, str):
        return float("nan")
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return float("nan")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() / _DAY_S
