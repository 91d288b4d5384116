"""Default and bounds of every declared option, as promised; and each bound holds where it is given."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from dsearch.attention_options import AttentionOptions
from dsearch.declared import Option, options_of, type_of
from dsearch.errors import InvalidRequest
from dsearch.jobs import LearningJob, SavingJob, TrainingJob, TuningJob
from dsearch.search_options import SearchOptions

Row = tuple[Any, Any, Any, str]
"""Default, lowest and highest value, and whether these are allowed themselves."""
OF_LEARNING: dict[str, Row] = {
    "seed": (0, 0, 2**31, "bounds allowed"),
    "promote": (True, None, None, ""),
    "accept": (False, None, None, ""),
    "risk": ("balanced", None, None, ""),
    "alpha": (None, 0, 1, "between"),
    "margin": (0.02, 0, 1, "bounds allowed"),
}
DECLARED: dict[type, dict[str, Row]] = {
    TuningJob: OF_LEARNING,
    SavingJob: OF_LEARNING
    | {
        "measure": ("score", None, 100, "characters"),
        "purpose": ("search", None, None, ""),
        "encode_documents": (False, None, None, ""),
    },
    TrainingJob: OF_LEARNING
    | {
        "self_supervised": (False, None, None, ""),
        "source": (None, None, None, ""),
        "scope": ("head", None, None, ""),
        "encoder_training": (None, None, None, ""),
        "encoder_learning_rate": (None, 0, 0.1, "between"),
        "objective": (None, None, None, ""),
        "reward_url": (None, None, 500, "characters"),
        "field": (None, None, 200, "characters"),
        "null_slot": (False, None, None, ""),
        "heads": (1, 1, 64, "bounds allowed"),
        "excitation": (False, None, None, ""),
        "query_side": (None, None, None, ""),
        "epochs": (None, 1, 1000, "bounds allowed"),
        "learning_rate": (None, 0, 1, "between"),
        "batch_size": (None, 1, 65536, "bounds allowed"),
        "negatives": (None, 0, 64, "bounds allowed"),
        "precision": (None, None, None, ""),
        "compiled": (False, None, None, ""),
        "tune": (True, None, None, ""),
        "memory": (True, None, None, ""),
        "token_matrix": (False, None, None, ""),
        "stage_loss": (False, None, None, ""),
        "monotone_fields": (None, None, 500, "characters"),
        "reranker": (None, None, 500, "characters"),
    },
    SearchOptions: {
        "limit": (10, 1, 1000, "bounds allowed"),
        "offset": (0, 0, 10000, "bounds allowed"),
        "cursor": (None, None, 512, "characters"),
        "operators": (True, None, None, ""),
        "mode": ("hybrid", None, None, ""),
        "model": (None, None, None, ""),
        "hops": (None, 1, 4, "bounds allowed"),
        "hop_strength": (None, 0, 10, "bounds allowed"),
        "score_threshold": (None, -1e9, 1e9, "bounds allowed"),
        "weight_threshold": (None, -1e9, 1e9, "bounds allowed"),
        "explain": (False, None, None, ""),
        "highlight": (False, None, None, ""),
        "highlight_by": ("words", None, None, ""),
        "partial": (False, None, None, ""),
        "candidates": (None, 1, 11000, "bounds allowed"),
        "stages": (None, 1, 2, "bounds allowed"),
        "rerank_candidates": (50, 1, 1000, "bounds allowed"),
        "group_by": (None, None, 1024, "characters"),
        "collapse": (False, None, None, ""),
        "diversity": (0.0, 0, 1, "bounds allowed"),
        "sort": (None, None, 1024, "characters"),
        "fields": (None, None, 1024, "characters"),
        "typos": (False, None, None, ""),
    },
    AttentionOptions: {
        "mode": ("hybrid", None, None, ""),
        "model": (None, None, None, ""),
        "purpose": (None, None, None, ""),
        "candidates": (100, 1, 1000, "bounds allowed"),
        "over": ("candidates", None, None, ""),
        "hops": (None, 1, 4, "bounds allowed"),
        "hop_strength": (None, 0, 10, "bounds allowed"),
        "score": ("dot", None, None, ""),
        "pooling": ("soft", None, None, ""),
        "width": (None, 0, 1e6, "between"),
        "temperature": (None, 0, 1e6, "between"),
        "match_field": (None, None, 256, "characters"),
        "ignore_case": (False, None, None, ""),
    },
}
ONLY_HTTP = {(SearchOptions, "partial")}
"""Options that the command line does not have."""


def _row(field: dataclasses.Field[Any], about: Option) -> Row:
    if about.longest is not None:
        return field.default, None, about.longest, "characters"
    if about.low is None:
        return field.default, None, None, ""
    return field.default, about.low, about.high, "between" if about.inside else "bounds allowed"


@pytest.mark.parametrize("declaration", DECLARED)
def test_defaults_and_bounds(declaration: type) -> None:
    assert {name: _row(*of) for name, of in options_of(declaration).items()} == DECLARED[declaration]


def _bounded(*declarations: type) -> list[tuple[type, str]]:
    return [
        (declaration, name)
        for declaration in declarations
        for name, (_, low, high, _) in DECLARED[declaration].items()
        if (low, high) != (None, None)
    ]


def _at_the_bounds(declaration: type, name: str) -> tuple[list[Any], list[Any]]:
    """Values that are allowed, and values that are refused, next to each other."""
    _, low, high, how = DECLARED[declaration][name]
    field, about = options_of(declaration)[name]
    if how == "characters":
        start = "http://127.0.0.1/" if about.pattern is not None else ""
        return [start.ljust(high, "a")], ["", start.ljust(high + 1, "a")]
    if type_of(field)[0] is int:
        return [low, high], [low - 1, high + 1, 1.5]
    inside = [math.nextafter(low, high), math.nextafter(high, low)]
    outside = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan]
    return (inside, [low, high, *outside]) if how == "between" else ([low, high, *inside], outside)


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


def test_options_of_http_alone() -> None:
    assert {
        (declaration, name)
        for declaration in DECLARED
        for name, (_, about) in options_of(declaration).items()
        if not about.cli
    } == ONLY_HTTP
