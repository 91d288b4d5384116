"""Output of hits: for a terminal, as JSON, and as a picture.

The picture, written by `dsearch search --heatmap`, shows how each head spread its attention over the hits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from dsearch.cli.session import as_json as as_line
from dsearch.cli.session import command_line, say
from dsearch.errors import InvalidRequest, Unavailable, amount
from dsearch.store.filters import parse_field
from dsearch.types import Confidence, Explanation, Hit, SearchResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SNIPPET = 160  # characters
BAR = 20
_SHOWN = 5e-5  # parts below it print as 0.0000
_BOLD, _PLAIN = "\x1b[1m", "\x1b[22m"


def as_json(result: SearchResult) -> dict[str, object]:
    """A result in the shape that the HTTP API gives it."""
    content = {name: getattr(result, name) for name in SearchResult.__slots__ if name != "stamp"}
    return {**asdict(result.stamp), **content, "hits": [hit.to_dict() for hit in result.hits]}


def show(result: SearchResult, empty: str | None = None, request: Mapping[str, Any] | None = None) -> None:
    """The hits on stdout, what they come from on stderr.

    Args:
        result: of a search.
        empty: name of the collection if it has no documents.
        request: options of the search: metadata that `fields` or `sort` names is shown.
    """
    bold = sys.stdout.isatty()
    if empty is not None:
        say(f"{empty} has no documents; fill it with: {command_line('index', 'SOURCE', '-c', empty)}")
        return
    if not result.hits and result.waiting is not None and not result.attention.candidates:
        tell_waiting(result.waiting.documents, result.waiting.hint.arguments[-1])
        return
    if not result.hits:
        say("nothing was found; leave out a filter, quotes or signs, or try other words")
        for operand in sorted(set(_quoted_values((request or {}).get("filter")))):
            say(f'in the filter "{operand}" is a text; if the field has numbers or booleans, write {operand}')
    confidence, folded = result.confidence, False
    first = bool(result.hits) and result.hits[0].rank == 1
    if first and confidence is not None and (words := in_words(confidence)) is not None:
        say(words)
    for hit in result.hits:
        if not folded and _is_less_likely(hit, confidence):
            typer.echo("less likely:")
            folded = True
        typer.echo(_lines(hit, bold=bold, metadata=_named_metadata(hit, request or {})))
    spread, stamp = result.attention, result.stamp
    covered = "" if spread.covered_mass is None else f", {spread.covered_mass:.1%} of the exact attention"
    say(
        f"{len(result.hits)} of {amount(spread.candidates, 'candidate')}{covered}; entropy "
        f"{spread.entropy:.2f} nats; "
        f"generation {stamp.generation}, model {stamp.model}; {result.took_ms:.0f} ms"
    )
    if result.next_cursor is not None:
        say(f"more: --cursor {result.next_cursor}")
    if result.waiting is not None:
        tell_waiting(result.waiting.documents, result.waiting.hint.arguments[-1])


def _is_less_likely(hit: Hit, confidence: Confidence | None) -> bool:
    """Return True for a hit below the learned floor; the first hit has a sentence of its own."""
    if confidence is None:
        return False
    if confidence.verdict == "nothing fits":
        return True
    return confidence.fitted_on == "judgements" and hit.rank > 1 and hit.score < confidence.floor


def in_words(confidence: Confidence) -> str | None:
    """Say whether the first hit is right, and on what evidence; None without judgements, unless nothing fits.

    Queries made of the documents' own words tell what nothing answers, and little of what people ask.
    """
    of_judgements = confidence.fitted_on == "judgements"
    source = amount(confidence.queries, "judged query")
    if not of_judgements:
        drawn = amount(confidence.queries, "query", "queries")
        source = f"{drawn} made of the documents' own words, not on judgements"
    if confidence.verdict == "nothing fits":
        return f"nothing fits this query well (estimated on {source}); these hits are the nearest there are"
    if not of_judgements:
        return None
    if confidence.probability is not None:
        return f"the first hit is right with a probability of {confidence.probability:.0%}, by {source}"
    words = {"likely": "is likely to be", "possible": "may be", "unlikely": "is unlikely to be"}
    return f"the first hit {words[confidence.verdict]} right (estimated on {source})"


def tell_waiting(documents: int, collection: str) -> None:
    """Say that an interrupted run left documents behind, and the command that goes on."""
    command = command_line("index", "-c", collection)
    say(f"{amount(documents, 'document')} cannot be found yet; go on with: {command}")


def tell_prompts(unused: str | None) -> None:
    """Name prompts of the encoder that are not used."""
    if unused is not None:
        say(f"note: {unused}")


def _quoted_values(filter: object) -> Iterator[str]:
    """Texts among a filter's operands that read as a number or a boolean."""
    if isinstance(filter, str):
        if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?|true|false", filter):
            yield filter
    elif isinstance(filter, Mapping):
        for value in cast("Mapping[str, object]", filter).values():
            yield from _quoted_values(value)
    elif isinstance(filter, list):
        for value in cast("list[object]", filter):
            yield from _quoted_values(value)


def _named_metadata(hit: Hit, request: Mapping[str, Any]) -> Mapping[str, object]:
    """The metadata that a request named: by `fields`, which left it in the hit, else by `sort`."""
    if request.get("fields") is not None:
        return hit.metadata
    if not request.get("sort"):
        return {}
    field = str(request["sort"]).removeprefix("-")
    value: object = hit.metadata
    for key in parse_field(field):
        value = cast("Mapping[str, object]", value).get(key) if isinstance(value, Mapping) else None
    return {} if value is None else {field: value}


def _lines(hit: Hit, *, bold: bool, metadata: Mapping[str, object]) -> str:
    bar = "█" * round(hit.weight * BAR)
    title = hit.title if hit.title != hit.id else ""
    copies = f"  (and {hit.duplicates} of the same text)" if hit.duplicates else ""
    lines = [f"{hit.rank:>3}. {hit.weight:6.1%} {bar:<{BAR}} {hit.id}  {title}".rstrip() + copies]
    if hit.explain is not None:
        lines += [f"     {line}" for line in _explained(hit.score, hit.explain)]
    lines += [f"     {name}: {_as_text(value)}" for name, value in sorted(metadata.items())]
    lines += [f"     {line}" for line in _pieces(hit, bold=bold) if line]
    return "\n".join(lines)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else as_line(value)


def _explained(score: float, explain: Explanation) -> list[str]:
    heads = list(zip(explain.dense, explain.keyword, explain.head_weights, explain.shares, strict=True))
    past = f" + past queries {explain.memory:.4f}" if explain.memory >= _SHOWN else ""
    if explain.second_stage:
        past += f" + second stage {explain.second_stage:.4f}"
    if explain.reranker:
        past += f" + reranker {explain.reranker:.4f}"
    if len(heads) == 1:
        lines = [f"score {score:.4f} = dense {explain.dense[0]:.4f} + keyword {explain.keyword[0]:.4f}{past}"]
    else:
        lines = [
            f"head {number}: dense {dense:.4f} + keyword {word:.4f}, share {share:.1%}; weight {weight:.1%}"
            for number, (dense, word, weight, share) in enumerate(heads)
        ]
        lines.append(f"score {score:.4f} = Σ share · (dense + keyword){past} + mixing {explain.mixing:.4f}")
    for query in explain.past_queries:
        if abs(query.part) < _SHOWN:
            continue
        named = "a query whose words are not kept" if query.query is None else f'"{query.query}"'
        lines.append(f"  {query.part:+.4f} by {named}, judged before")
    if explain.terms:
        parts = (f"{term} {' '.join(f'{part:.4f}' for part in of)}" for term, of in explain.terms.items())
        lines.append(f"keyword: {', '.join(parts)}")
    return lines


def _pieces(hit: Hit, *, bold: bool) -> list[str]:
    """The pieces that show the query's words, or the passage that was found, or the text's beginning."""
    pieces = [piece for piece in hit.highlights or [] if piece.field == "text"]
    if not pieces:
        passage = hit.passage
        text = " ".join((hit.text if passage is None else passage.text).split())
        before = "" if passage is None or passage.start == 0 else "…"
        after = "…" if len(text) > _SNIPPET or (passage is not None and passage.end < len(hit.text)) else ""
        return [f"{before}{text[:_SNIPPET]}{after}"]
    lines: list[str] = []
    for piece in pieces:
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


FORMATS = (".png", ".svg", ".pdf")
_LONGEST = 32  # characters of a name that are shown


def check_picture(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is searched.

    Raises:
        InvalidRequest: another kind of file, or a folder that is not there.
        Unavailable: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequest(f"--heatmap {path}: the name tells the format; end it in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"--heatmap {path}: {path.absolute().parent} is not a folder; make it first")
    if find_spec("matplotlib") is None:
        raise Unavailable('--heatmap needs matplotlib, the extra "plot"; run: pip install "dsearch[plot]"')


def draw(result: SearchResult, path: Path) -> None:
    """Draw heads × hits of an explained result, best hit first.

    Raises:
        InvalidRequest: the search found nothing, or the file cannot be written.
    """
    from dsearch.plot import heatmap

    if not result.hits:
        raise InvalidRequest(f"nothing was found for {result.query!r}, so there is no attention to draw")
    columns = [hit.explain.head_weights for hit in result.hits if hit.explain is not None]
    weights = [list(head) for head in zip(*columns, strict=True)]  # [heads, hits]
    heads, hits = len(weights), len(columns)
    figure = heatmap(
        weights,
        titles=[shortened(result.query)],
        query_label="head",
        key_label="hit",
        query_names=[str(head) for head in range(heads)],
        key_names=[shortened(_name(hit)) for hit in result.hits],
        panel_size=(1.5 + 0.35 * hits, 2.6 + 0.35 * heads),
    )
    save_picture(figure, path)


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure; raises InvalidRequest if the file cannot be written."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidRequest(f"--heatmap {path}: {error.strerror or error}; name another file") from error


def _name(hit: Hit) -> str:
    return hit.title or hit.id


def shortened(text: str) -> str:
    """On one line, not too long, and nothing of it taken for a formula."""
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text.replace("$", r"\$")
