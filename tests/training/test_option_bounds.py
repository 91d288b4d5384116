"""Options of trainings: each bound is allowed, and what is beside it is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training import ClickOptions, TrainingOptions
from dsearch.training.full_task import FullOptions
from dsearch.training.options import (
    ValueOptions,
    check_stage_options,
    feedback_options,
    query_options,
    self_supervised_options,
)


@pytest.mark.parametrize("make", [query_options, self_supervised_options, feedback_options])
def test_what_is_given_stands_before_defaults(make: Any) -> None:
    given = {"epochs": 7, "keywords": True, "memory": True, "objective": "teacher", "batch_size": 3}
    assert make(**given) == replace(make(), **given)


COUNT, RATE, WEIGHT = (
    ([1], [0, -1]),
    ([1e-9, 1 - 1e-9], [0, 1, math.nan]),
    ([0, 1e9], [-1e-9, math.inf, math.nan]),
)
SHARE = ([0, 1], [-1e-9, 1 + 1e-9, math.nan])
BOUNDS: list[tuple[Any, str, tuple[list[Any], list[Any]]]] = [
    *(
        (of, name, bounds)
        for of in (TrainingOptions, ValueOptions)
        for names, bounds in {
            ("epochs", "batch_size"): COUNT,
            ("learning_rate",): RATE,
            ("decay",): WEIGHT,
            ("folds",): ([0, 2, 20], [-1, 1, 21]),
        }.items()
        for name in names
    ),
    *((TrainingOptions, name, COUNT) for name in ("retention_batch", "heads")),
    (TrainingOptions, "retention", WEIGHT),
    (TrainingOptions, "query_side", (["linear", "low-rank", "mlp", None], ["", "Linear"])),
    (TrainingOptions, "scope", (["head", "query"], ["full", ""])),
    (TrainingOptions, "precision", (["float32", "bfloat16"], ["float16", ""])),
    (TrainingOptions, "encoder_learning_rate", RATE),
    (TrainingOptions, "objective", (["listwise", "judged", "teacher"], ["value", ""])),
    (ValueOptions, "most_examples", COUNT),
    *((FullOptions, name, COUNT) for name in ("epochs", "batch_size", "chunk", "depth")),
    *((FullOptions, name, ([0, 1], [-1])) for name in ("negatives", "steps_a_round")),
    *((FullOptions, name, RATE) for name in ("learning_rate", "encoder_learning_rate")),
    (FullOptions, "margin", ([1e-9, 9], [0, -1, math.nan])),
    (FullOptions, "held_out", ([0, 2, 9], [1, -1])),
    (FullOptions, "precision", (["float32", "bfloat16"], ["float16", ""])),
    (ClickOptions, "clip", ([1, 1e9], [1 - 1e-9, math.inf, math.nan])),
    (ClickOptions, "key_share", SHARE),
    (ClickOptions, "floor", SHARE),
    (ClickOptions, "quorum", ([None, 1, 9], [0, -1])),
]


@pytest.mark.parametrize(("declaration", "name", "bounds"), BOUNDS)
def test_bounds(declaration: Any, name: str, bounds: tuple[list[Any], list[Any]]) -> None:
    allowed, refused = bounds
    for value in allowed:
        assert getattr(declaration(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(InvalidRequest, match="; use "):
            declaration(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "query", "self_supervised": True, "stage_loss": True},
        {"scope": "head", "stage_loss": True},
        {"source": "feedback", "reranker": "a"},
        {"scope": "query", "reranker": "a"},
        {"field": "n", "reranker": "a"},
    ],
    ids=str,
)
def test_options_of_a_second_stage_that_nothing_would_follow(options: dict[str, Any]) -> None:
    """Tokens and judgements are there."""
    collection: Any = SimpleNamespace(snapshot=SimpleNamespace(tokens=object()))
    judged = {} if "self_supervised" in options else {"queries": {"q": "a"}, "judgements": {"q": {"d": 1.0}}}
    with pytest.raises(InvalidRequest, match="for judged queries, in scope"):
        check_stage_options(TrainingJob(**judged, **options), collection)


def test_options_that_need_others() -> None:
    assert TrainingOptions(excitation=True, heads=2).excitation
    with pytest.raises(InvalidRequest, match="use heads=2 or more"):
        TrainingOptions(excitation=True)
