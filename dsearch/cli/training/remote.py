"""`dsearch train` while a server holds the lock: the server trains, as a task, and this follows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.cli.remote import ended_task, server_of
from dsearch.cli.session import opened_engine, say
from dsearch.cli.training.options import given, there
from dsearch.cli.training.output import Outcome, answers_now, is_kept
from dsearch.errors import HomeLocked, InvalidRequest

if TYPE_CHECKING:
    from dsearch.cli.training.options import Asked
    from dsearch.training import CheckedData

_SERVERS_NAME = {"encoder_method": "encoder_training"}


def train_by_server(locked: HomeLocked, asked: Asked) -> Outcome:
    """Have the server train.

    Raises:
        HomeLocked: what holds the lock is no server.
        InvalidRequest: an option that a server does not take.
        Conflict: the training did not come to an end; the message says why.
    """
    if names := there(_here_only(asked)):
        if locked.url is None:
            raise locked
        raise InvalidRequest(
            f"the server at {locked.url} holds the lock, and it does not take {names}; end it first, or "
            "leave that out"
        )
    collection = asked.collection
    how = {_SERVERS_NAME.get(name, name): value for name, value in asked.chosen().items()}
    with server_of(locked) as client:
        if asked.data is not None:
            checked = checked_beside(asked.home, collection, asked.data, asked.split, strict=asked.strict)
            how |= {"queries": checked.queries, "judgements": checked.qrels}
        task = client.train(
            collection,
            self_supervised=asked.self_supervised,
            from_feedback=asked.of_feedback,
            null_slot=asked.null_slot,
            promote=asked.promote,
            accept=asked.accept,
            alpha=asked.alpha,
            margin=asked.margin,
            **given(field=asked.field),
            **how,
        )
        result = ended_task(client, task, f"training of {collection}")
    live, version, trained = result["live"], result.pop("model"), result["trained"]
    of = "documents" if asked.of_values else "queries"
    lines = [
        (
            f"{collection}: {trained} trained on {result['examples']} {of} in {result['seconds']:.1f} s "
            f"({result['epochs']} epochs)"
        ),
        f"gate: {result['reason']}",
        answers_now(collection, version, result["parent"]) if live else is_kept(collection, trained),
    ]
    return Outcome(live, {"version": version, **result}, lines)


def _here_only(asked: Asked) -> dict[str, Any]:
    """The options that a server does not take: it has an encoder and a device of its own."""
    return {
        "--exclude": asked.exclude,
        "--trusted-keys": asked.trusted_keys,
        "--teacher": asked.teacher,
        "--batch-size": asked.batch_size,
        "--precision": asked.precision,
        "--compile": asked.compiled,
        "--run": asked.run,
        "--resume": asked.resume,
        "--encoder": asked.encoder,
        "--device": asked.device,
        "--backend": asked.backend,
        "--threads": asked.threads,
        "--ray": asked.ray,
    }


def checked_beside(
    home: Path | None, collection: str, data: Path, split: str, *, strict: bool = False
) -> CheckedData:
    """Judgements held against a collection that a server has open; what is wrong with them is told."""
    from dsearch.training import checked_judgements

    with opened_engine(home, readonly=True) as (engine, _):
        checked = checked_judgements(engine.collection(collection), data, split, strict=strict)
    if checked.report.counts:
        say(checked.report.to_text())
    return checked
