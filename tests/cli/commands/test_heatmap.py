"""`dsearch search --heatmap`: heads × hits of a real query, as a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli.terminal import Terminal

from dsearch.cli import output
from dsearch.engine import Collection

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def indexed(dsearch: Terminal, beir: Path) -> Terminal:
    assert dsearch("index", beir, "-c", "t")[0] == 0
    return dsearch


def test_it_shows_the_heads_weights_of_the_hits(
    indexed: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.ndarray] = []
    import dsearch.plot

    whole = dsearch.plot.heatmap

    def heatmap(weights: object, **options: object) -> object:
        drawn.append(np.asarray(weights))
        return whole(weights, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(dsearch.plot, "heatmap", heatmap)
    path = tmp_path / "out.png"
    code, out, err = indexed("search", "thing7 $x^$", "-c", "t", "-k", "4", "--heatmap", path, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "heads by hits" in err
    assert drawn[0].shape == (1, 4)
    assert drawn[0][0].tolist() == pytest.approx([hit["weight"] for hit in result["hits"]])
    assert all("explain" not in hit for hit in result["hits"])


def test_without_it_nothing_is_drawn_and_output_stays(indexed: Terminal, tmp_path: Path) -> None:
    _, plain, _ = indexed("search", "thing7", "-c", "t")
    _, drawn, _ = indexed("search", "thing7", "-c", "t", "--heatmap", tmp_path / "a.svg")
    assert plain == drawn
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")


def test_errors_come_before_the_search(
    indexed: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    with monkeypatch.context() as patched:
        patched.setattr(Collection, "search", search)
        code, _, err = indexed("search", "x", "-c", "t", "--heatmap", tmp_path / "out.doc")
        assert (code, "end it in .png, .svg, .pdf" in err) == (1, True)
        code, _, err = indexed("search", "x", "-c", "t", "--heatmap", tmp_path / "not" / "out.png")
        assert (code, "is not a folder; make it first" in err) == (1, True)
        patched.setattr(output, "find_spec", lambda _: None)
        code, _, err = indexed("search", "x", "-c", "t", "--heatmap", tmp_path / "out.png")
        assert (code, 'pip install "dsearch[plot]"' in err) == (1, True)
    code, _, err = indexed(
        "search", "nosuch", "-c", "t", "--mode", "keyword", "--heatmap", tmp_path / "o.png"
    )
    assert (code, "there is no attention to draw" in err) == (1, True)
    assert not (tmp_path / "o.png").exists()
