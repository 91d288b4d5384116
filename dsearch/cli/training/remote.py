"""`dsearch train` while a server holds the lock: the server trains, as a task, and the command follows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from dsearch.cli.remote import ended_task, server_of
from dsearch.cli.session import opened_engine
from dsearch.cli.training.output import (
    Outcome,
    answers_now,
    decision_lines,
    epochs_of_values,
    epochs_text,
    is_kept,
)
from dsearch.cli.training.session import JudgedFolder, judged_job
from dsearch.errors import HomeLocked, InvalidRequest, amount
from dsearch.jobs import LearningJob, TrainingJob, request_of

AnyJob = TypeVar("AnyJob", bound=LearningJob)


def train_by_server(
    locked: HomeLocked,
    collection: str,
    job: TrainingJob,
    folder: JudgedFolder | None,
    home: Path | None,
    here_only: Mapping[str, object],
) -> Outcome:
    """Have the server train.

    Args:
        locked: names the server.
        collection: its name.
        job: without the judgements of `folder`.
        folder: the files of judgements.
        home: the folder of the collections.
        here_only: options that a server does not take, since it has an encoder and a device of its own.

    Raises:
        HomeLocked: what holds the lock is no server.
        InvalidRequest: an option that a server does not take.
        Conflict: the training did not come to an end; the message says why.
    """
    if names := ", ".join(name for name, value in here_only.items() if value):
        if locked.url is None:
            raise locked
        raise InvalidRequest(
            f"the server at {locked.url} runs on this home and does not take {names}; end it first, or "
            "leave that out"
        )
    with server_of(locked) as client:
        if folder is not None:
            job = judged_beside(home, collection, job, folder)
        task = client.train(collection, **request_of(job))
        result = ended_task(client, task, f"training of {collection}", unit="steps")
    live, version, trained = result["live"], result.pop("model"), result["trained"]
    unit = ("query", "queries") if job.field is None else ("document",)
    count_epochs = epochs_text if job.field is None else epochs_of_values
    try_it = None if job.field is None else f"predict with model={trained!r}"
    learned = amount(result["examples"], *unit)
    lines = [
        result["verdict"],
        (
            f"{collection}: {trained} trained on {learned} in {result['seconds']:.1f} s "
            f"({count_epochs(result['epochs'])})"
        ),
        f"gate: {result['reason']}",
        *decision_lines(result),
        answers_now(version, result.get("undo")) if live else is_kept(collection, trained, try_it),
    ]
    return Outcome(live, {"version": version, **result}, lines)


def judged_beside(home: Path | None, collection: str, job: AnyJob, folder: JudgedFolder) -> AnyJob:
    """The job with judgements that were checked against a collection which a server has open."""
    with opened_engine(home, readonly=True) as (engine, _):
        return judged_job(engine.collection(collection), job, folder)
