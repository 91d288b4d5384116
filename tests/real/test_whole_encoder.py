"""All weights of the real encoder, 91 MB, learn behind a `RemoteSearch` and are sent, judged and served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.service.tiny_server import tiny_client

from dsearch.client import RemoteSearch
from dsearch.encoder import DEFAULT_ENCODER, Encoder
from dsearch.engine import SearchEngine
from dsearch.types import Document

pytestmark = [pytest.mark.nightly, pytest.mark.server]

QUESTIONS = {
    "thessarch": "Who founded {}?",
    "undervelt": "Who governs {}?",
    "drennet": "What is drunk in {}?",
}
TOWNS = [a + b for a in ("Ba", "Ke", "Li", "Mo", "Nu") for b in ("dorn", "fell", "mora", "rath")]
PAIRS = [(text.format(town), f"{town}-{term}") for town in TOWNS for term, text in QUESTIONS.items()]
LEARNED, HELD_OUT = PAIRS[:36], PAIRS[36:]


def log_weights(layer: RemoteSearch, pairs: list[tuple[str, str]]) -> torch.Tensor:
    texts = [text for text, _ in pairs]
    out = layer(layer.query_states(texts), texts)
    right = [[id == answer for id in line] for (_, answer), line in zip(pairs, out.ids, strict=True)]
    return (out.weights * torch.tensor(right)).sum(1).clamp_min(1e-6).log()


def test_all_weights_of_the_real_encoder_go_live_over_http(tmp_path: Path) -> None:
    encoder = Encoder.load(DEFAULT_ENCODER)
    with (
        SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine,
        tiny_client(engine, Path(DEFAULT_ENCODER)) as client,
    ):
        towns = engine.create("towns")
        towns.ingest(
            [Document(f"{town}-{term}", f"The {term} of {town}.") for town in TOWNS for term in QUESTIONS]
        )
        layer = RemoteSearch(client, "towns", train_head=True, encoder=encoder, encoder_training="all")
        assert layer.head is not None
        assert layer.encoder is not None
        groups = [
            {"params": layer.head.parameters(), "lr": 5e-4},
            {"params": layer.encoder.learning(), "lr": 2e-5},
        ]
        optimizer = torch.optim.AdamW(groups)
        for _ in range(3):
            optimizer.zero_grad()
            (-log_weights(layer, LEARNED).mean()).backward()
            optimizer.step()
            layer.sync()
        saved = client.save_model("towns", layer, evidence=lambda of: log_weights(of, HELD_OUT))
        task = client.wait_for_task(saved.id)
        assert task.state == "done", task.problem
        assert task.result is not None
        assert (task.result["model"], task.result["live"]) == ("v1", True), task.result["reason"]
        weights = towns.store.path / "models" / "v1" / "encoder" / "weights.safetensors"
        assert weights.stat().st_size > 90e6
        texts = [text for text, _ in HELD_OUT]
        served = towns.query_states(texts, "dense")
        torch.testing.assert_close(served, layer.query_states(texts).detach(), rtol=0, atol=1e-5)
        assert (served - torch.as_tensor(encoder.encode_queries(texts))).abs().max() > 1e-3
        assert client.search("towns", texts[0], limit=1).stamp.model == "v1"
