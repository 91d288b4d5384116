"""Pictures of attention. Needs the extra `plot`; matplotlib is imported when a picture is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsearch.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heatmap(
    weights: Any,
    *,
    titles: Sequence[str] | None = None,
    query_label: str = "queries",
    key_label: str = "keys",
    query_names: Sequence[str] | None = None,
    key_names: Sequence[str] | None = None,
    panel_size: tuple[float, float] = (2.5, 2.5),
    colours: str = "Reds",
) -> Figure:
    """Attention weights as a grid of heat maps with one shared colour bar.

    Args:
        weights: tensor or array `[rows, columns, queries, keys]`, one panel a row and column (layers × heads,
            say); `[columns, queries, keys]` is one row of panels and `[queries, keys]` one panel.
        titles: one a panel, row by row; or one a column, which stands above the first row.
        query_label: label of the vertical axes.
        key_label: label of the horizontal axes.
        query_names: label of each query, in place of its number.
        key_names: label of each key.
        panel_size: width and height of a panel in inches.
        colours: a colour map of matplotlib; the darkest is the largest weight of all panels, the lightest 0.

    Returns:
        A figure that belongs to no window: `.savefig("out.png")`, or show it in a notebook.

    Raises:
        InvalidRequest: weights of another number of dimensions or without an entry, or names that do not fit.
        Unavailable: matplotlib is not installed.
    """
    panels = _panels(weights)
    rows, columns, queries, keys = panels.shape
    titles = _checked("titles", titles, (columns, rows * columns))
    query_names = _checked("query_names", query_names, (queries,))
    key_names = _checked("key_names", key_names, (keys,))
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unavailable('matplotlib is not installed; run pip install "dsearch[plot]"') from error

    size = (panel_size[0] * columns + 0.8, panel_size[1] * rows)  # the colour bar takes the 0.8
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    top = float(panels.max())
    images: list[Any] = []
    for place, axis in enumerate(axes.flat):
        row, column = divmod(place, columns)
        image = axis.imshow(
            panels[row, column],
            cmap=colours,
            vmin=0.0,
            vmax=top or 1.0,
            aspect="auto",
            interpolation="nearest",
        )
        images.append(image)
        if titles and place < len(titles):
            axis.set_title(titles[place])
        if row == rows - 1:
            axis.set_xlabel(key_label)
        if column == 0:
            axis.set_ylabel(query_label)
        if key_names:
            axis.set_xticks(range(keys), key_names, rotation=90)
        if query_names:
            axis.set_yticks(range(queries), query_names)
    figure.colorbar(images[-1], ax=axes, shrink=0.6)
    return figure


def _panels(weights: Any) -> np.ndarray:
    """Four dimensions of float64, from anything array-like, tensors with a graph or on a GPU included."""
    if hasattr(weights, "detach"):
        weights = weights.detach().double().cpu().numpy()
    panels = np.asarray(weights, dtype=np.float64)
    if not 2 <= panels.ndim <= 4 or panels.size == 0:
        raise InvalidRequest(
            f"weights of shape {panels.shape}; use (rows, columns, queries, keys), none of them 0; "
            "rows and columns may be left out"
        )
    return panels.reshape((1,) * (4 - panels.ndim) + panels.shape)


def _checked(name: str, names: Sequence[str] | None, allowed: tuple[int, ...]) -> list[str] | None:
    """The names as a list, if their number is one of those allowed."""
    if names is None:
        return None
    if len(names) not in allowed:
        numbers = " or ".join(str(n) for n in dict.fromkeys(allowed))
        raise InvalidRequest(f"{len(names)} {name}; use {numbers}")
    return list(names)
