"""Report of `dsearch train` and `dsearch tune`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.session import print_json, typed, with_home
from dsearch.cli.training.session import stop_unless
from dsearch.errors import amount

if TYPE_CHECKING:
    from dsearch.jobs import TrainingJob
    from dsearch.training import JobResult, Registration


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a training.

    Attributes:
        live: whether its result is live.
        record: the whole of it, as JSON.
        lines: the same in words.
    """

    live: bool
    record: Mapping[str, Any]
    lines: Sequence[str]

    def show(self, *, json: bool, promote: bool) -> None:
        """Print it; exit code 3 if it should have gone live and the gate prevented that."""
        if json:
            print_json(self.record)
        else:
            typer.echo("\n".join(self.lines))
        stop_unless(self.live or not promote)


def answers_now(version: str, undo: str | None) -> str:
    """A line about a version that answers, with the way back; `undo`: `Registration.undo`."""
    line = f"{version} answers now"
    return line if undo is None else f"{line}. {undo_line(undo)}"


def undo_line(command: str) -> str:
    """The one way back, as every output names it; `command` names no home."""
    return f"Undo: {with_home(command, 'rollback', 'promote')}"


def is_kept(collection: str, version: str, try_it: str | None = None) -> str:
    """A line about a version that is not live, with the ways to use it."""
    try_it = try_it or f"try it with --model {version}"
    promote = typed("promote", version, "-c", collection)
    return f"{version} is kept but does not answer; {try_it}, or: {promote}"


def kept_lines(collection: str, registered: Registration, try_it: str | None = None) -> list[str]:
    """Lines about a version that is not live; the reason where another one became live meanwhile."""
    if registered.outdated_by is None:
        return [is_kept(collection, registered.version, try_it)]
    return [registered.reason, is_kept(collection, registered.passed or registered.version, try_it)]


def gate_lines(result: Mapping[str, Any]) -> list[str]:
    """The gate's report in the result of a task, and why a version that passed it is not live."""
    from dsearch.training.gate.gate import report_text

    gate = result["gate"]
    late = result["reason"] if not result["live"] and gate["verdict"] == "passed" else gate["reason"]
    return [report_text(gate), *([late] if late != gate["reason"] else [])]


def decision_lines(record: Mapping[str, Any]) -> list[str]:
    """The gate's decision in words; records of earlier versions have none."""
    decision = (record.get("gate") or {}).get("decision")
    return [] if decision is None else [f"  {decision['text']}"]


def leg_lines(record: Mapping[str, Any]) -> list[str]:
    """Name dense or keyword search where it answers the judged queries better than both together, untuned."""
    scores = record.get("scores") or {}
    legs = [leg for leg in ("dense", "keyword") if leg in scores]
    leg = max(legs, key=lambda name: scores[name], default=None)
    if leg is None or "untuned" not in scores or scores[leg] <= scores["untuned"]:
        return []
    line = (
        f"  {leg} alone answers the judged queries better than both legs untuned, nDCG@10 {scores[leg]:.4f}"
    )
    return [f"{line} against {scores['untuned']:.4f}"]


def outcome_of_task(collection: str, job: TrainingJob, result: dict[str, Any]) -> Outcome:
    """The outcome of a training by a server."""
    live, version, trained = result["live"], result.pop("model"), result["trained"]
    unit = ("query", "queries") if job.field is None else ("document",)
    count_epochs = epochs_text if job.field is None else epochs_of_values
    try_it = None if job.field is None else f"predict with model={trained!r}"
    lines = [
        result["verdict"],
        (
            f"{collection}: {trained} trained on {amount(result['examples'], *unit)} in "
            f"{result['seconds']:.1f} s ({count_epochs(result['epochs'])})"
        ),
        *gate_lines(result),
        answers_now(version, result["undo"]) if live else is_kept(collection, trained, try_it),
    ]
    return Outcome(live, {"version": version, **result}, lines)


def outcome_of(collection: str, job: TrainingJob, learned: JobResult, registered: Registration) -> Outcome:
    """The outcome of a training in this process."""
    lines = (
        _lines_of_values(collection, job.field, learned, registered)
        if job.field is not None
        else _lines_of_ranking(collection, learned, registered)
    )
    live = registered.live is not None
    about = {
        "version": registered.model,
        "live": live,
        "trained": registered.version,
        "reason": registered.reason,
        "verdict": registered.sentence,
        "previous": registered.previous,
        "undo": registered.undo,
    }
    return Outcome(live, {**about, **learned.result.record}, lines)


def _lines_of_ranking(collection: str, learned: JobResult, registered: Registration) -> list[str]:
    from dsearch.training import TrainingResult

    trained = learned.result
    assert isinstance(trained, TrainingResult)
    served = _served(trained.share, trained.keyword_factor)
    lines = [
        registered.sentence,
        (
            f"{collection}: {registered.version} trained on "
            f"{amount(learned.examples, 'query', 'queries')} in {trained.seconds:.1f} s "
            f"({epochs_text(trained.epochs)}{served})"
        ),
        trained.gate.to_text(),
    ]
    if trained.tuned is not None:
        report = trained.tuned.gate
        lines.append(f"tuned search, {trained.tuned.setting}: {report.verdict}: {report.reason}")
        lines += [*decision_lines(trained.tuned.record), *leg_lines(trained.tuned.record)]
    if learned.outcomes is not None:
        report, count = learned.outcomes.gate, len(learned.outcomes.rows)
        lines.append(
            f"{amount(count, 'row')} of past queries from feedback: {report.verdict}: {report.reason}"
        )
    if learned.second_stage is not None:
        lines.append(learned.second_stage.to_text())
        if learned.second_stage.passed and registered.live is not None:
            return [*lines, answers_now(registered.live, registered.undo)]
    if registered.live is None:
        return [*lines, *kept_lines(collection, registered)]
    if registered.live != registered.version:
        named = "the tuned search" if learned.outcomes is None else "with the memory of past queries"
        lines.append(f"{registered.live}, {named}, is better than what answered before")
    return [*lines, answers_now(registered.live, registered.undo)]


def _lines_of_values(collection: str, field: str, learned: JobResult, registered: Registration) -> list[str]:
    from dsearch.training import TrainedValues

    trained, version = learned.result, registered.model
    assert isinstance(trained, TrainedValues)
    return [
        (
            f"{collection}: {version} learned values of {field!r} ({trained.record['kind']}) from "
            f"{amount(learned.examples, 'document')} in {trained.seconds:.1f} s "
            f"({epochs_of_values(trained.epochs)})"
        ),
        trained.to_text(),
        *(
            kept_lines(collection, registered, f"predict with model={version!r}")
            if registered.live is None
            else [answers_now(version, registered.undo)]
        ),
    ]


def epochs_text(epochs: int | str) -> str:
    """Count the epochs; there are none where held-out queries were answered best by what was there before."""
    if epochs == 0:
        return "0 epochs: no amount of training answered held-out queries better"
    return amount(epochs, "epoch") if isinstance(epochs, int) else f"{epochs} epochs"


def epochs_of_values(epochs: int) -> str:
    """Count the epochs of learned values; none where the regression that they start from is as good."""
    return amount(epochs, "epoch") if epochs else "0 epochs: the ridge regression that training starts from"


def _served(share: float, keyword_factor: float) -> str:
    text = "" if share == 1.0 else f", of which {share:.0%} is served"
    text += "" if keyword_factor == 1.0 else f", keywords weighed {keyword_factor:g} times as high"
    return f"{text}, for the sake of unseen documents" if text else ""
