"""Options of trainings: their defaults, and each bound is allowed while what is beside it is refused."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from dsearch.errors import InvalidRequest
from dsearch.training import ClickOptions, Gate, TrainingOptions
from dsearch.training.options import (
    HeadOptions,
    ValueOptions,
    feedback_options,
    query_options,
    self_supervised_options,
)
from dsearch.training.scopes.full import FullOptions

OF_HEADS = {
    "epochs": 30,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "retention": 3.0,
    "retention_batch": 64,
    "decay": 1e-3,
    "heads": 1,
    "query_side": None,
    "excitation": False,
    "train_keys": True,
    "keywords": True,
    "folds": 3,
    "seed": 0,
}
OF_RANKING = OF_HEADS | {
    "objective": "listwise",
    "scope": "head",
    "encoder_method": "lora",
    "lora_rank": 16,
    "encoder_learning_rate": 2e-4,
    "precision": "float32",
    "stage_loss": False,
    "tune": True,
    "memory": True,
}
OF_VALUES = OF_HEADS | {
    "epochs": 60,
    "retention": 0.0,
    "values": "stored",
    "contrastive": False,
    "most_examples": 5000,
}
OF_SELF_SUPERVISED = {
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 5e-4,
    "keywords": False,
    "tune": False,
    "memory": False,
}
OF_FULL = {
    "epochs": 1,
    "batch_size": 8,
    "chunk": 16,
    "encoder_learning_rate": 5e-5,
    "learning_rate": 1e-3,
    "negatives": 0,
    "depth": 50,
    "margin": 0.95,
    "steps_a_round": 100,
    "encoder_method": "all",
    "lora_rank": 16,
    "keywords": True,
    "query_keys": True,
    "held_out": 5,
    "precision": "float32",
    "compiled": False,
    "stage_loss": False,
    "seed": 0,
}
DEFAULTS: list[tuple[Any, dict[str, Any]]] = [
    (HeadOptions, OF_HEADS),
    (TrainingOptions, OF_RANKING),
    (ValueOptions, OF_VALUES),
    (query_options, OF_RANKING | {"scope": "query", "epochs": 4}),
    (self_supervised_options, OF_RANKING | OF_SELF_SUPERVISED),
    (feedback_options, OF_RANKING | {"objective": "judged", "tune": False, "memory": False}),
    (FullOptions, OF_FULL),
    (ClickOptions, {"clip": 10.0, "key_share": 0.1, "quorum": None, "floor": 0.2}),
    (Gate, {"alpha": 0.05, "margin": 0.02, "min_queries": 10, "harm": 0.1}),
]


@pytest.mark.parametrize(("make", "expected"), DEFAULTS)
def test_defaults(make: Any, expected: dict[str, Any]) -> None:
    assert asdict(make()) == expected
    if make in (query_options, self_supervised_options, feedback_options):
        other = {"epochs": 7, "keywords": True, "memory": True, "objective": "teacher", "batch_size": 3}
        assert asdict(make(**other)) == expected | other


COUNT, RATE, WEIGHT = (
    ([1], [0, -1]),
    ([1e-9, 1 - 1e-9], [0, 1, math.nan]),
    ([0, 1e9], [-1e-9, math.inf, math.nan]),
)
SHARE = ([0, 1], [-1e-9, 1 + 1e-9, math.nan])
BOUNDS: list[tuple[Any, str, tuple[list[Any], list[Any]]]] = [
    *(
        (of, name, bounds)
        for of in (HeadOptions, TrainingOptions, ValueOptions)
        for names, bounds in {
            ("epochs", "batch_size", "retention_batch", "heads"): COUNT,
            ("learning_rate",): RATE,
            ("retention", "decay"): WEIGHT,
            ("folds",): ([0, 2, 20], [-1, 1, 21]),
            ("query_side",): (["linear", "low-rank", "mlp", None], ["", "Linear"]),
        }.items()
        for name in names
    ),
    (TrainingOptions, "scope", (["head", "query"], ["full", ""])),
    (TrainingOptions, "precision", (["float32", "bfloat16"], ["float16", ""])),
    (TrainingOptions, "encoder_learning_rate", RATE),
    (TrainingOptions, "objective", (["listwise", "judged", "teacher"], ["value", ""])),
    (ValueOptions, "most_examples", COUNT),
    (ValueOptions, "values", (["stored", "learned"], ["", "Stored"])),
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


def test_options_that_need_others() -> None:
    assert HeadOptions(excitation=True, heads=2).excitation
    with pytest.raises(InvalidRequest, match="use heads=2 or more"):
        HeadOptions(excitation=True)
    assert ValueOptions(contrastive=True, values="learned").contrastive
    with pytest.raises(InvalidRequest, match="use values='learned'"):
        ValueOptions(contrastive=True)
