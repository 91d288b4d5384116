"""The path of scripts/examples/remote.py, smaller: a network and a head learn through an engine they ask."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from support.paths import SCRIPTS
from torch.nn.functional import normalize

from dsearch import Document, SearchEngine
from dsearch.client import LocalEngine

SCRIPT = SCRIPTS / "examples" / "remote.py"


def test_the_network_and_the_head_learn(tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("example_remote", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    torch.manual_seed(0)
    centres, digits = normalize(torch.rand(10, 64), dim=-1), torch.arange(40) % 10
    images = normalize(centres[digits] + 0.35 * torch.rand(40, 64), dim=-1)
    with SearchEngine(tmp_path / "home") as engine:
        cards = [Document(str(i), f"image {i}", metadata={"digit": int(d)}) for i, d in enumerate(digits)]
        engine.create("digits", dimension=64).upsert(cards, images.numpy())
        client = LocalEngine(engine)
        model = script.Classifier(client)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        script.train(model, images, digits, steps=10)
        assert all(
            not torch.equal(one, other)
            for one, (name, other) in zip(before, model.named_parameters(), strict=True)
            if name not in ("memory.head.value_delta", "memory.head.keyword_weight")
            and not name.endswith(("mixture_logits", "hop_strength"))
        )
        assert client.models("digits").live == model.memory.model == "v2"
        assert script.accuracy(model, images, digits, turned=True) > 0.5
