"""Output of attention and predictions: for a terminal, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from dsearch.cli.output import BAR, save_picture, shortened
from dsearch.cli.session import say
from dsearch.errors import InvalidRequest, amount
from dsearch.results import Attention, FieldPrediction, Predictions
from dsearch.types import Stamp


def show_attention(queries: Sequence[str], attention: Attention, limit: int) -> None:
    """The weights on stdout, what they come from on stderr."""
    for at, (query, ids) in enumerate(zip(queries, attention.ids, strict=True)):
        if len(queries) > 1:
            typer.echo(query)
        for id, weight in zip(ids[:limit], attention.weights[at].tolist(), strict=False):
            typer.echo(_line(id, weight))
        if not ids:
            typer.echo("     nothing is in reach")
        counts = attention.candidates or []
        shares = [] if attention.covered_mass is None else attention.covered_mass.tolist()
        if counts and shares:
            say(
                f"{min(limit, len(ids))} of {amount(counts[at], 'candidate')}, {shares[at]:.1%} of the "
                "attention"
            )
    _tell(attention.note, attention.stamp)


def show_prediction(queries: Sequence[str], field: str, predictions: Predictions) -> None:
    """The predictions and their evidence on stdout, what they come from on stderr."""
    for query, answer in zip(queries, predictions.predictions, strict=True):
        if len(queries) > 1:
            typer.echo(query)
        typer.echo(f"{field} {_predicted(answer)}")
        for document in answer.evidence:
            typer.echo(f"{_line(document.id, document.weight)}  {document.value}")
        say(
            f"from {amount(answer.candidates, 'document')}, {answer.without_field} without {field}; "
            f"{answer.covered_mass:.1%} of the attention"
        )
    _tell(predictions.note, predictions.stamp)


def draw_weights(queries: Sequence[str], rows: Sequence[Mapping[str, Sequence[float]]], path: Path) -> None:
    """Draw queries × documents, a panel a head.

    Args:
        queries: their texts.
        rows: for each query, documents with their weight by each head, the largest first.
        path: picture to write.

    Raises:
        InvalidRequest: no query has a document, or the file cannot be written.
    """
    from dsearch.plot import heatmap

    ids = list(dict.fromkeys(id for row in rows for id in row))
    if not ids:
        raise InvalidRequest("no document is in reach, so there is no attention to draw")
    heads = len(next(iter(next(row for row in rows if row).values())))
    nothing = [0.0] * heads
    weights = [[[row.get(id, nothing)[head] for id in ids] for row in rows] for head in range(heads)]
    figure = heatmap(
        weights,  # [heads, queries, documents]
        titles=None if heads == 1 else [f"head {head}" for head in range(heads)],
        query_label="query",
        key_label="document",
        query_names=[shortened(query) for query in queries],
        key_names=[shortened(id) for id in ids],
        panel_size=(1.5 + 0.35 * len(ids), 2.6 + 0.35 * len(queries)),
    )
    save_picture(figure, path)


def _line(id: str, weight: float) -> str:
    return f"     {weight:6.1%} {'█' * round(weight * BAR):<{BAR}} {id}"


def _predicted(answer: FieldPrediction) -> str:
    if answer.labels is not None:
        return ", ".join(f"{label} {share:.1%}" for label, share in list(answer.labels.items())[:5])
    if answer.kind == "number":
        return f"≈ {answer.mean:.6g} ± {answer.spread:.3g}"
    if isinstance(answer.mean, list):
        return f"≈ [{', '.join(f'{number:.4g}' for number in answer.mean)}]"
    return "is not predicted: no document in reach has it"


def _tell(note: str | None, stamp: Stamp) -> None:
    say(f"generation {stamp.generation}, model {stamp.model}")
    if note is not None:
        say(note.replace("over='all'", "--over all").replace("more candidates", "more --candidates"))
