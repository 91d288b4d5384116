"""Which query memory is chosen, by values that are written down: no search is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsearch.training.gate.held_out import Answers
from dsearch.training.memory import MemoryTrials
from dsearch.training.memory_values import GRID, MemorySetting, MemoryValues
from dsearch.training.tune import DEFAULT, ChosenSetting, Trials

QUERIES = 60
BEST = GRID[3]
NONE_UNSEEN = np.full(QUERIES, np.nan)


def trials(
    gain: np.ndarray, *, unseen: np.ndarray = NONE_UNSEEN, of_all: bool = False, drawn: int = QUERIES
) -> MemoryTrials:
    """A grid of which `BEST`, or all, gains so much on each query; `unseen` is gained on hidden documents."""
    half = np.full(QUERIES, 0.5), np.where(np.isnan(unseen), np.nan, 0.5)
    plain, better = MemoryValues(*half, *half), MemoryValues(*[half[0] + gain, half[1] + unseen] * 2)
    values: dict[Any, MemoryValues] = {(DEFAULT, None): plain}
    values |= {(DEFAULT, memory): better if of_all or memory == BEST else plain for memory in GRID}
    values = {of: one.subset(np.arange(drawn)) for of, one in values.items()}
    written = {
        "drawn": np.arange(drawn),
        "seed": 0,
        "start": DEFAULT,
        "choose": lambda self, without=(): ChosenSetting(DEFAULT, Answers.of_scores(np.zeros(drawn))),
    }
    searches: Any = object.__new__(type("Written", (Trials,), written))
    return MemoryTrials(searches, values, np.zeros(drawn, bool))


CLEAR = np.full(QUERIES, 0.05)
LUCK = np.tile([0.3, -0.25], QUERIES // 2)  # .025 on average, with a standard error of .036


@pytest.mark.parametrize(
    ("grid", "chosen"),
    [
        (trials(CLEAR), BEST),
        (trials(LUCK), None),
        (trials(-CLEAR), None),
        (trials(np.zeros(QUERIES)), None),
        (trials(CLEAR, drawn=20), BEST),
        (trials(CLEAR, drawn=19), None),  # too few
        (trials(CLEAR, unseen=-2 * CLEAR), None),  # what is gained on all is lost on hidden documents
        (trials(CLEAR, unseen=-0.5 * CLEAR), BEST),
        (trials(-0.1 * CLEAR, unseen=CLEAR), None),  # a gain on hidden ones alone
    ],
)
def test_a_memory_is_chosen_for_a_gain_that_is_more_than_luck(
    grid: MemoryTrials, chosen: MemorySetting | None
) -> None:
    assert grid.choose() == (DEFAULT, chosen)


def test_few_hidden_documents_have_no_part() -> None:
    few = np.where(np.arange(QUERIES) < 19, -1.0, np.nan)
    assert trials(CLEAR, unseen=few).choose().memory == BEST
    enough = np.where(np.arange(QUERIES) < 20, -1.0, np.nan)
    assert trials(CLEAR, unseen=enough).choose().memory is None


def test_of_equals_the_middle_of_the_grid_is_chosen() -> None:
    chosen = trials(CLEAR, of_all=True).choose().memory
    assert chosen is not None
    middle = MemorySetting(0.4, 0.05, 0.5, 0.5)
    distances = {memory: sum(abs(a - b) for a, b in zip(memory, middle, strict=True)) for memory in GRID}
    assert distances[chosen] == min(distances.values())


def test_a_trained_head_has_the_best_memory_even_of_little_gain() -> None:
    assert trials(LUCK).choose().memory is None
    assert trials(LUCK).for_head() == BEST
    assert trials(CLEAR).for_head() == BEST


def test_each_fold_is_answered_by_the_choice_of_the_others() -> None:
    chosen, before, after = trials(CLEAR).crossed()
    assert chosen == (DEFAULT, BEST)
    assert before.all.tolist() == [0.5] * QUERIES
    np.testing.assert_allclose(after.all, 0.55)


def test_a_choice_that_folds_do_not_confirm_is_dropped() -> None:
    """All of the gain is of two queries: whoever leaves one of them out sees none."""
    gain = np.full(QUERIES, -0.001)
    gain[[7, 40]] = 1.6
    grid = trials(gain)
    assert grid.choose().memory == BEST
    chosen, _, after = grid.crossed()
    assert chosen == (DEFAULT, None)
    assert after.all.max() == 0.5
