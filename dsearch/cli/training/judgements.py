"""Judgements of a BEIR folder as data of a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dsearch.cli.session import say
from dsearch.errors import InvalidRequest
from dsearch.evaluation import read_pairs, read_qrels
from dsearch.jobs import LearningJob, TrainingJob

if TYPE_CHECKING:
    from dsearch.engine import Collection

AnyJob = TypeVar("AnyJob", bound=LearningJob)


@dataclass(frozen=True, slots=True)
class JudgedFolder:
    """The files of judgements that a command was given.

    Attributes:
        data: a BEIR folder.
        split: the judgements are those of qrels/SPLIT.tsv.
        exclude: a file of pairs that are left out.
        teacher: a file of a teacher's scores.
        strict: refuse data with any fault.
    """

    data: Path
    split: str
    exclude: Path | None = None
    teacher: Path | None = None
    strict: bool = False


DEFAULT_SPLIT = "train"


def require_data(data: Path | None, **about: object) -> None:
    """Refuse options about judgements, by name, where none are given.

    Raises:
        InvalidRequest: one of them has a value.
    """
    values = {**about, "split": about.get("split") != DEFAULT_SPLIT}
    if data is None and (names := ", ".join(f"--{name}" for name, value in values.items() if value)):
        raise InvalidRequest(f"{names} without --data; give the judgements with --data, or leave it out")


def judged_job(collection: Collection, job: AnyJob, folder: JudgedFolder) -> AnyJob:
    """The job with the judgements of a folder; faults of the data are reported and left out.

    Raises:
        InvalidSource: a file is missing or malformed; with `strict`, anything is wrong.
    """
    from dsearch.training import checked_judgements
    from dsearch.training.gate.held_out import FEW_QUERIES

    checked = checked_judgements(collection, folder.data, folder.split, strict=folder.strict)
    if checked.report.counts:
        say(checked.report.to_text())
    positives = [{id for id, grade in judged.items() if grade > 0} for judged in checked.qrels.values()]
    rows = collection.store.rows_of(sorted(set[str]().union(*positives)))
    answered = sum(not ids.isdisjoint(rows) for ids in positives)
    if isinstance(job, TrainingJob) and answered < FEW_QUERIES:
        say(
            f"{answered} judged queries have an answer; reliable training needs {FEW_QUERIES}, so "
            f"{FEW_QUERIES - answered} are missing: until then `dsearch tune` gains more"
        )
    data = {
        "queries": checked.queries,
        "judgements": checked.qrels,
        "left_out": dict(checked.report.counts),
    }
    if folder.exclude is not None:
        data["exclude"] = {query: sorted(ids) for query, ids in read_pairs(folder.exclude).items()}
    if isinstance(job, TrainingJob) and folder.teacher is not None:
        data["teacher"] = read_qrels(folder.teacher)
    return replace(job, **data)
