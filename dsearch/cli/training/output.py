"""Report of `dsearch train` and `dsearch tune`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.session import print_json, typed, with_home
from dsearch.cli.training.session import stop_unless
from dsearch.errors import amount

if TYPE_CHECKING:
    from dsearch.jobs import TrainingJob


def show_training(collection: str, job: TrainingJob, result: dict[str, Any], *, json: bool) -> None:
    """Print the result of a training; exit code 3 if it should have gone live and the gate prevented that."""
    if json:
        print_json({"version": result["model"], **result})
    else:
        typer.echo("\n".join(training_lines(collection, job, result)))
    stop_unless(result["live"] or not job.promote)


def training_lines(collection: str, job: TrainingJob, result: Mapping[str, Any]) -> list[str]:
    """The result of a training in words."""
    live, version, trained = result["live"], result["model"], result["trained"]
    if job.field is None:
        learned = f"trained on {amount(result['examples'], 'query', 'queries')}"
        epochs = epochs_text(result["epochs"])
        epochs += _served(result.get("share", 1.0), result.get("keyword_factor", 1.0))
    else:
        documents = amount(result["examples"], "document")
        learned = f"learned values of {job.field!r} ({result['kind']}) from {documents}"
        epochs = epochs_of_values(result["epochs"])
    lines = [
        result["verdict"],
        f"{collection}: {trained} {learned} in {result['seconds']:.1f} s ({epochs})",
        *gate_lines(result),
        *_measure_lines(result.get("values") or {}),
        *_tuned_lines(result.get("tuned")),
    ]
    outcomes, stage = result.get("outcomes"), result.get("second_stage")
    if outcomes is not None:
        gate, rows = outcomes["gate"], amount(outcomes["examples"], "row")
        lines.append(f"{rows} of past queries from feedback: {gate['verdict']}: {gate['reason']}")
    if stage is not None:
        lines.append(stage["text"])
    if not live:
        return [*lines, is_kept(collection, result["passed"] or trained, _way_to_try(job, trained))]
    if version != trained and (stage is None or stage["verdict"] != "passed"):
        named = "the tuned search" if outcomes is None else "with the memory of past queries"
        lines.append(f"{version}, {named}, is better than what answered before")
    return [*lines, answers_now(version, result["undo"])]


def _way_to_try(job: TrainingJob, trained: str) -> str | None:
    return None if job.field is None else f"predict with model={trained!r}"


def _measure_lines(values: Mapping[str, Any]) -> list[str]:
    before, after = values.get("before"), values.get("after")
    if before is None or after is None:
        return []
    pairs = [f"{name} {before[name]:.4f} → {after[name]:.4f}" for name in before]
    return [f"  held-out documents: {', '.join(pairs)}"]


def _tuned_lines(tuned: Mapping[str, Any] | None) -> list[str]:
    if tuned is None:
        return []
    from dsearch.training.tune import setting_from

    gate = tuned["gate"]
    line = f"tuned search, {setting_from(tuned)}: {gate['verdict']}: {gate['reason']}"
    return [line, *decision_lines(tuned), *leg_lines(tuned)]


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


def gate_lines(result: Mapping[str, Any]) -> list[str]:
    """The gate's report in the result of a task, and which version became live meanwhile."""
    from dsearch.training.gate.gate import report_text

    return [report_text(result["gate"]), *([result["reason"]] if result.get("outdated_by") else [])]


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
