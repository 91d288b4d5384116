"""The picture that `dsearch search --heatmap` writes: how each head spread its attention over the hits."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dsearch.errors import InvalidRequest, Unavailable
from dsearch.types import Hit, SearchResult

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
        titles=[_shown(result.query)],
        query_label="head",
        key_label="hit",
        query_names=[str(head) for head in range(heads)],
        key_names=[_shown(_name(hit)) for hit in result.hits],
        panel_size=(1.5 + 0.35 * hits, 2.6 + 0.35 * heads),
    )
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidRequest(f"--heatmap {path}: {error.strerror or error}; name another file") from error


def _name(hit: Hit) -> str:
    return hit.title or hit.id


def _shown(text: str) -> str:
    """On one line, not too long, and nothing of it taken for a formula."""
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text.replace("$", r"\$")
