"""A loss of one's own over vectors of one's own, as of images and sounds, whose labels are metadata."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import normalize

import dsearch
from dsearch.engine import SearchEngine
from dsearch.types import Document

SIZE, SPEAKERS, RECORDINGS = 12, 4, 60


def test_a_layer_over_vectors_learns_from_their_metadata_and_goes_live(tmp_path: Path) -> None:
    """Three numbers of twelve tell the speaker; the rest is noise, which a trained head leaves out."""
    generator = torch.Generator().manual_seed(0)
    speaker = torch.arange(RECORDINGS) % SPEAKERS
    voices = torch.eye(SPEAKERS)[:, :3]

    def recordings(of: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(len(of), SIZE, generator=generator)
        noise[:, :3] = 0.2 * noise[:, :3] + 1.5 * voices[of]
        return normalize(noise, dim=1)

    with SearchEngine(tmp_path / "home") as engine:
        sounds = engine.create("sounds", dimension=SIZE)
        cards = [
            Document(f"s{i}", f"recording {i}", metadata={"by": int(by)}) for i, by in enumerate(speaker)
        ]
        sounds.upsert(cards, recordings(speaker).numpy())
        layer = dsearch.open_layer(engine, "sounds", mode="dense", candidates=RECORDINGS)
        wanted = torch.arange(SPEAKERS).repeat(40)
        learned, held_out = recordings(wanted), recordings(wanted)

        def right(layer: dsearch.SearchLayer, states: torch.Tensor) -> torch.Tensor:
            out = layer(states, values=torch.eye(SPEAKERS)[speaker])
            return (out.context.gather(1, wanted[:, None])[:, 0] + 1e-6).log()

        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02)
        for _ in range(30):
            optimizer.zero_grad()
            (-right(layer, learned).mean()).backward()
            optimizer.step()
        found = dsearch.save_model(sounds, layer, evidence=lambda one: right(one, held_out))
        assert found.live == "v1", found.reason
        shares = {}
        for model in ("v0", "v1"):
            results = [sounds.search(vector=state, limit=1, model=model) for state in held_out.tolist()]
            tops = [result.hits[0].metadata["by"] for result in results]
            shares[model] = (torch.tensor(tops) == wanted).float().mean().item()
        assert shares["v1"] > shares["v0"] + 0.05
