"""Hits as a person reads them in a terminal, and as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict

import typer

from dsearch.cli.session import say
from dsearch.types import Explanation, Hit, Learned, SearchResult

_SNIPPET = 160  # characters
_BAR = 20
_BOLD, _PLAIN = "\x1b[1m", "\x1b[22m"


def as_json(result: SearchResult) -> dict[str, object]:
    """A result in the shape that the HTTP API gives it."""
    content = asdict(result)
    stamp = content.pop("stamp")
    for hit in content["hits"]:
        for name in ("explain", "highlights", "passage"):
            if hit[name] is None:
                del hit[name]
    return {**stamp, **content}


def show(result: SearchResult) -> None:
    """The hits on stdout, what they come from on stderr."""
    bold = sys.stdout.isatty()
    for hit in result.hits:
        typer.echo(_lines(hit, bold=bold))
    spread, stamp = result.attention, result.stamp
    covered = "" if spread.covered_mass is None else f", {spread.covered_mass:.1%} of the exact attention"
    if spread.null_weight is not None:
        covered += f", {spread.null_weight:.1%} for nothing fits"
    say(
        f"{len(result.hits)} of {spread.candidates} candidates{covered}; entropy {spread.entropy:.2f} nats; "
        f"generation {stamp.generation}, model {stamp.model}; {result.took_ms:.0f} ms"
    )
    if result.next_cursor is not None:
        say(f"more: --cursor {result.next_cursor}")


def _lines(hit: Hit, *, bold: bool) -> str:
    bar = "█" * round(hit.weight * _BAR)
    title = hit.title if hit.title != hit.id else ""
    lines = [f"{hit.rank:>3}. {hit.weight:6.1%} {bar:<{_BAR}} {hit.id}  {title}".rstrip()]
    if hit.explain is not None:
        lines += [f"     {line}" for line in _explained(hit.score, hit.explain)]
    lines += [f"     {line}" for line in _pieces(hit, bold=bold)]
    return "\n".join(lines)


def _learned(learned: Learned) -> list[str]:
    """What training changed, and who pulled."""
    lines = [
        f"{learned.parent} had it at rank {learned.rank} with {learned.score:.4f}; since then dense "
        f"{learned.dense:+.4f}, keyword {learned.keyword:+.4f}"
        + ("" if learned.overlay is None else f", of which its own key {learned.overlay:+.4f}")
    ]
    for lesson in learned.lessons or []:
        named = "a query whose words are not kept" if lesson.query is None else f'"{lesson.query}"'
        judged = "" if lesson.grade is None else f", judged {lesson.grade:g}"
        lines.append(f"  {lesson.share:+.0%} by {named}{judged}")
    return lines


def _explained(score: float, explain: Explanation) -> list[str]:
    heads = list(zip(explain.dense, explain.keyword, explain.head_weights, explain.shares, strict=True))
    if len(heads) == 1:
        lines = [f"score {score:.4f} = dense {explain.dense[0]:.4f} + keyword {explain.keyword[0]:.4f}"]
    else:
        lines = [
            f"head {number}: dense {dense:.4f} + keyword {word:.4f}, share {share:.1%}; weight {weight:.1%}"
            for number, (dense, word, weight, share) in enumerate(heads)
        ]
        lines.append(f"score {score:.4f} = Σ share · (dense + keyword) + mixing {explain.mixing:.4f}")
    if explain.fusion_gate is not None:
        factors = " ".join(f"{factor:.2f}" for factor in explain.fusion_gate)
        lines.append(f"gate: keywords count {factors} times as much for this query")
    if explain.learned is not None:
        lines += _learned(explain.learned)
    if explain.terms:
        parts = (f"{term} {' '.join(f'{part:.4f}' for part in of)}" for term, of in explain.terms.items())
        lines.append(f"keyword: {', '.join(parts)}")
    return lines


def _pieces(hit: Hit, *, bold: bool) -> list[str]:
    """The pieces that show the query's words, or the passage that was found, or the text's beginning."""
    shown = [piece for piece in hit.highlights or [] if piece.field == "text"]
    if not shown:
        passage = hit.passage
        text = " ".join((hit.text if passage is None else passage.text).split())
        before = "" if passage is None or passage.start == 0 else "…"
        after = "…" if len(text) > _SNIPPET or (passage is not None and passage.end < len(hit.text)) else ""
        return [f"{before}{text[:_SNIPPET]}{after}"]
    lines: list[str] = []
    for piece in shown:
        text, at = "", 0
        for start, end in piece.spans:
            start, end = start - piece.start, end - piece.start
            marked = f"{_BOLD}{piece.text[start:end]}{_PLAIN}" if bold else piece.text[start:end]
            text += piece.text[at:start] + marked
            at = end
        before = "…" if piece.start > 0 else ""
        after = "…" if piece.start + len(piece.text) < len(hit.text) else ""
        lines.append(before + " ".join((text + piece.text[at:]).split()) + after)
    return lines
