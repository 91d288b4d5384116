"""The service on Ray Serve: the same routes and answers, from shards."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.tiny_encoder import WORDS, write_tiny_encoder

import dsearch
from dsearch.cluster.coordinator import LiveRelease, coordinator, copies_up, stop_all
from dsearch.cluster.ingress import IngressSettings, deploy
from dsearch.cluster.release.split import split
from dsearch.cluster.release.transfer import fetch_shard, read_release, send
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.errors import Conflict, NotInCluster
from dsearch.types import Document

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray


def test_a_client_notices_nothing(nodes: object, tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "encoder")
    encoder = Encoder.load(str(folder))
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine:
        made = engine.create("food")
        texts = [f"{WORDS[i % len(WORDS)]} {WORDS[i % 5]} {i % 60}" for i in range(100)]
        made.ingest([Document(f"d{i}", text, metadata={"n": i}) for i, text in enumerate(texts)])
        made.refresh()
        split(made.store, made.snapshot.generation, tmp_path / "release", 2)
        uri = (tmp_path / "sent").as_uri()
        send(tmp_path / "release", uri)
        assert read_release(uri) == read_release(str(tmp_path / "release"))
        published = coordinator(start=True).publish.remote(uri, 1, str(tmp_path / "cache"), 0.1)
        live = LiveRelease(**ray.get(published, timeout=240))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = IngressSettings(str(tmp_path / "home"), str(folder), backend="torch", query_timeout_s=30.0)
        deploy(settings, host="127.0.0.1", port=port, num_cpus=0.1)
        try:
            with dsearch.Client(f"http://127.0.0.1:{port}", timeout_s=60) as client:
                for options in ({}, {"mode": "dense", "limit": 3}, {"filter": {"n": {"gte": 40}}}):
                    found = client.search("food", "apple red 7", **options)
                    expected = made.search("apple red 7", **options)
                    assert [hit.id for hit in found.hits] == [hit.id for hit in expected.hits]
                    assert [hit.weight for hit in found.hits] == pytest.approx(
                        [hit.weight for hit in expected.hits], abs=1e-5
                    )
                with pytest.raises(NotInCluster):
                    client.attend("food", ["apple"])
                with pytest.raises(Conflict, match="readonly"):
                    client.delete("food", "d1")
            assert copies_up(live) == [[True], [True]]
        finally:
            stop_all()


def test_shards_travel_and_are_proven(tmp_path: Path) -> None:
    from support.fakes import HashingEncoder

    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        made = engine.create("food")
        made.ingest([Document("a", "apple"), Document("b", "bread")])
        made.refresh()
        release = split(made.store, made.snapshot.generation, tmp_path / "release", 2)
    entry = release.shards[0]
    here = fetch_shard(str(tmp_path / "release"), entry.name, entry.digest, tmp_path / "cache")
    assert here == tmp_path / "release" / entry.name
