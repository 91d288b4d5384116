"""The result of a training or a tuning as JSON, as tasks show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsearch.training.finetune.second_stage import stage_in_words
from dsearch.training.registry import Registration

TOLD_OF_TRAINING = ("examples", "epochs", "seconds", "gate", "headroom")  # of a record, in a task's result
TOLD_OF_TUNING = ("keyword_weight", "hop_strength", "k1", "b", "scores", "examples", "seconds", "gate")


def summary(
    registered: Registration,
    record: Mapping[str, Any],
    left_out: Mapping[str, int],
    second_stage: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the result, as in a task; `second_stage`: record of one that was fitted, None without."""
    columns = TOLD_OF_TUNING if record.get("scope") in ("tune", "memory") else TOLD_OF_TRAINING
    return {
        **registered.to_dict(),
        "left_out": dict(left_out),
        **{name: record.get(name) for name in columns},
        "second_stage": None if second_stage is None else stage_in_words(second_stage),
    }
