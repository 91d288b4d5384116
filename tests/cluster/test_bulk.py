"""Encoding on a cluster: what one process would have stored; an interruption loses a block at most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.tiny_encoder import WORDS, write_tiny_encoder

from dsearch.cluster.bulk import encode_on_cluster
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.engine.indexing.ingest import encode_pending
from dsearch.errors import InvalidRequest
from dsearch.types import Document, Progress

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


def test_a_folder_is_indexed_by_a_cluster(
    nodes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dsearch.cli.grouped_help import app

    monkeypatch.setenv("DSEARCH_ENCODER", str(write_tiny_encoder(tmp_path / "encoder")))
    monkeypatch.setenv("DSEARCH_BACKEND", "torch")
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "home"))
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(30):
        (notes / f"{number}.txt").write_text(f"{WORDS[number % len(WORDS)]} {number}")
    for told in ("30 new, 0 changed, 0 unchanged, 30 encoded", "0 new, 0 changed, 30 unchanged, 0 encoded"):
        app(["index", str(notes), "-c", "c", "--ray", "auto", "--workers", "2"], standalone_mode=False)
        assert told in capsys.readouterr().out
    with SearchEngine(tmp_path / "home", readonly=True) as engine:
        assert engine.collection("c").describe().generation == 2  # the empty one was 1


def test_blocks_are_committed_and_an_interrupted_run_goes_on(nodes: object, tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "encoder")
    encoder = Encoder.load(str(folder))
    texts = [f"{WORDS[i % len(WORDS)]} {i % 60}" for i in range(50)] + [" ".join(WORDS * 6)]
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts)]
    chosen = {"encoder": str(folder), "device": "cpu", "backend": "torch"}
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine:
        alone, cluster = engine.create("alone"), engine.create("cluster")
        for made in (alone, cluster):
            made.store.upsert(documents)
        encode_pending(alone.store, encoder)

        def interrupt(progress: Progress) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode_on_cluster(cluster.store, encoder=chosen, num_cpus=0.1, block=20, on_progress=interrupt)
        left = cluster.store.count().pending
        assert left in (31, 40)
        assert encode_on_cluster(cluster.store, encoder=chosen, num_cpus=0.1, block=20) == left
        assert encode_on_cluster(cluster.store, encoder=chosen, num_cpus=0.1, block=20) == 0
        rows = alone.store.rows()
        assert np.array_equal(cluster.store.rows(), rows)
        np.testing.assert_allclose(cluster.store.embeddings(rows), alone.store.embeddings(rows), atol=1e-5)
        ours, theirs = cluster.store.passages(rows), alone.store.passages(rows)
        assert list(ours) == list(theirs) != []
        for row in ours:
            assert np.array_equal(ours[row].spans, theirs[row].spans)
            np.testing.assert_allclose(ours[row].embeddings, theirs[row].embeddings, atol=1e-5)
        with pytest.raises(InvalidRequest, match="workers=0; use 1 or more"):
            encode_on_cluster(cluster.store, encoder=chosen, workers=0)
