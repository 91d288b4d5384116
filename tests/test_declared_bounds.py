"""A job takes each bound that its options declare, and refuses what is next to it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dsearch.declared import options_of, type_of
from dsearch.errors import InvalidRequest
from dsearch.jobs import LearningJob, SavingJob, TrainingJob, TuningJob


def _bounded(*declarations: type) -> list[tuple[type, str]]:
    return [
        (declaration, name)
        for declaration in declarations
        for name, (_, about) in options_of(declaration).items()
        if about.longest is not None or about.low is not None
    ]


def _at_the_bounds(declaration: type, name: str) -> tuple[list[Any], list[Any]]:
    """Values that are allowed, and values that are refused, next to each other."""
    field, about = options_of(declaration)[name]
    if about.longest is not None:
        start = "http://127.0.0.1/" if about.pattern is not None else ""
        return [start.ljust(about.longest, "a")], ["", start.ljust(about.longest + 1, "a")]
    low, high = about.low, about.high
    assert low is not None
    assert high is not None
    if type_of(field)[0] is int:
        return [low, high], [low - 1, high + 1, 1.5]
    inside = [math.nextafter(low, high), math.nextafter(high, low)]
    outside = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan]
    return (inside, [low, high, *outside]) if about.inside else ([low, high, *inside], outside)


@pytest.mark.parametrize(("declaration", "name"), _bounded(TuningJob, TrainingJob, SavingJob))
def test_a_job_takes_each_bound_and_refuses_what_is_beside_it(
    declaration: type[LearningJob], name: str
) -> None:
    allowed, refused = _at_the_bounds(declaration, name)
    for value in allowed:
        LearningJob.check(declaration(**{name: value}))
    for value in refused:
        with pytest.raises(InvalidRequest, match=f"^{name}=.*; use (a|an) "):
            LearningJob.check(declaration(**{name: value}))
