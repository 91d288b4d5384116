from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from dsearch.errors import InvalidRequest, Unavailable
from dsearch.plot import heatmap

pytest.importorskip("matplotlib")


def render(figure) -> np.ndarray:
    """The picture as it is drawn, `[height, width, 3]`, first row on top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def pixel(picture: np.ndarray, axis, query: float, key: float) -> tuple[int, ...]:
    """The colour in the middle of a cell."""
    x, y = axis.transData.transform((key, query))
    return tuple(int(c) for c in picture[picture.shape[0] - 1 - round(y), round(x)])


def colour(weight: float) -> tuple[int, ...]:
    from matplotlib import colormaps

    return tuple(int(c) for c in colormaps["Reds"](weight, bytes=True)[:3])


def panels(figure):
    return figure.axes[:-1]  # the last is the colour bar


def test_the_identity_matrix_is_a_diagonal():
    """The picture every chapter on attention begins with: each query attends to its own key."""
    figure = heatmap(torch.eye(10))
    picture = render(figure)
    (axis,) = panels(figure)
    for query in range(10):
        for key in range(10):
            assert pixel(picture, axis, query, key) == colour(1.0 if query == key else 0.0), (query, key)
    assert pixel(picture, axis, 0, 0)[1] < 50 < 200 < pixel(picture, axis, 0, 9)[1], "dark on light"


def test_axes_are_rows_columns_queries_keys():
    weights = np.zeros((2, 3, 4, 5))
    weights[1, 2, 3, 0] = 1.0
    figure = heatmap(weights, titles=["a", "b", "c"], query_label="tokens", key_label="documents")
    picture = render(figure)
    grid = panels(figure)
    assert len(grid) == 6
    assert pixel(picture, grid[5], 3, 0) == colour(1.0)
    assert pixel(picture, grid[5], 0, 3) == pixel(picture, grid[0], 3, 0) == colour(0.0)
    assert [axis.get_title() for axis in grid] == ["a", "b", "c", "", "", ""]
    assert [axis.get_xlabel() for axis in grid] == [""] * 3 + ["documents"] * 3
    assert [axis.get_ylabel() for axis in grid] == ["tokens", "", ""] * 2


def test_all_panels_share_one_colour_scale():
    figure = heatmap(torch.tensor([[[0.2, 0.1]], [[0.4, 0.0]]]))
    picture = render(figure)
    left, right = panels(figure)
    assert pixel(picture, left, 0, 0) == colour(0.5)
    assert pixel(picture, right, 0, 0) == colour(1.0)
    assert len(figure.axes) == 3


def test_names_stand_at_the_ticks():
    (axis,) = panels(heatmap(torch.eye(2), query_names=["q0", "q1"], key_names=["d7", "d9"]))
    assert [t.get_text() for t in axis.get_xticklabels()] == ["d7", "d9"]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["q0", "q1"]


def test_tensors_with_a_graph_and_half_precision_are_drawn():
    assert panels(heatmap(torch.eye(3, requires_grad=True).bfloat16()))


def test_zero_weights_are_drawn_light():
    figure = heatmap(torch.zeros(2, 2))
    assert pixel(render(figure), panels(figure)[0], 0, 0) == colour(0.0)


@pytest.mark.parametrize("shape", [(3,), (1, 1, 1, 1, 1), (0, 4)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(InvalidRequest, match=r"use \(rows, columns, queries, keys\)"):
        heatmap(np.ones(shape))


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(InvalidRequest, match=r"3 titles; use 2 or 4"):
        heatmap(np.ones((2, 2, 1, 1)), titles=["a", "b", "c"])
    with pytest.raises(InvalidRequest, match=r"1 key_names; use 5"):
        heatmap(np.ones((4, 5)), key_names=["a"])


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unavailable, match=r'pip install "dsearch\[plot\]"'):
        heatmap(np.eye(2))


def test_importing_does_not_load_matplotlib():
    code = "import sys, dsearch.plot; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
