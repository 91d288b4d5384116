"""The result of a training or a tuning before it is registered, and as JSON, as tasks show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsearch.training.finetune.second_stage import stage_in_words
from dsearch.training.registry import (
    Registration,
    register_outcomes,
    register_second_stage,
    register_trained,
    register_values,
)
from dsearch.training.values.finetune import TrainedValues

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.jobs import LearningJob
    from dsearch.training.finetune.head import TrainingResult
    from dsearch.training.finetune.outcomes import OutcomeMemory
    from dsearch.training.finetune.second_stage import TrainedStage
    from dsearch.training.loop.run_folder import RunFolder
    from dsearch.training.tune import TunedSearch

TOLD_OF_TRAINING = ("examples", "epochs", "seconds", "gate", "headroom")  # of a record, in a task's result
TOLD_WHERE_THERE = ("share", "keyword_factor", "kind", "values", "tuned", "outcomes")  # of the same
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
        **{name: record[name] for name in TOLD_WHERE_THERE if record.get(name) is not None},
        "second_stage": None if second_stage is None else stage_in_words(second_stage),
    }


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, before it is registered.

    Attributes:
        result: the head, its record and the gate's report.
        parent: the version that it started from.
        examples: the number of queries, or documents, that it learned from.
        left_out: the number of lines that could not be used, by kind.
        second_stage: trained to follow what goes live; None where the collection keeps no tokens.
        outcomes: rows of the query memory that feedback is worth; None without any.
        run: folder of the run, which can be gone on with until the result is stored; None without one.
    """

    result: TrainingResult | TrainedValues | TunedSearch
    parent: str
    examples: int
    left_out: Mapping[str, int]
    second_stage: TrainedStage | None = None
    outcomes: OutcomeMemory | None = None
    run: RunFolder | None = None

    def in_place_of(self, live: str) -> JobResult:
        """The same result, to go live only if `live` is still the live version then."""
        record = {**self.result.record, "live_at_start": live}
        return replace(self, result=replace(self.result, record=record))

    def register(self, collection: Collection, job: LearningJob) -> Registration:
        """Store the result as a version, and make it live if the gate passed.

        Rows of past queries that passed go live in its place; a second stage that passed goes live behind it.
        """
        registered = self._registered(collection, job)
        if self.run is not None:
            self.run.release()
        return registered

    def _registered(self, collection: Collection, job: LearningJob) -> Registration:
        options = {"promote": job.promote, "accept": job.accept, "parent": self.parent}
        if isinstance(self.result, TrainedValues):
            return register_values(collection, self.result, **options)
        registered = register_trained(collection, self.result, **options)
        if self.outcomes is not None and self.outcomes.gate.passed and job.promote:
            return register_outcomes(collection, self.outcomes.rows, self.outcomes.record, registered)
        stage = self.second_stage
        if stage is None or not stage.passed or not job.promote or self.result.head.second_stage is not None:
            return registered  # no second stage, or it is part of the version
        return register_second_stage(collection, stage.stage, stage.record, registered)

    def summary(self, registered: Registration) -> dict[str, Any]:
        """The result as JSON, as tasks show it."""
        stage = None if self.second_stage is None else self.second_stage.record
        return summary(registered, self.result.record, self.left_out, stage)
