"""The demo's story: what training changed, by a stated rule, the losses too."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.cli.commands.demo import DEPTH, show_changes
from dsearch.engine import SearchEngine
from dsearch.types import Document


def test_held_out_sentences_show_what_rose_most_and_what_fell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    words = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]

    def text() -> str:
        return " ".join(" ".join(draw.choice(words, size=6)).capitalize() + "." for _ in range(6))

    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("t")
        collection.ingest([Document(f"d{n}", text()) for n in range(40)])
        head = deepcopy(collection.head("v0"))
        chance = torch.Generator().manual_seed(1)
        with torch.no_grad():  # it changes many places, for better and for worse
            for parameter in head.parameters():
                if parameter.ndim >= 2:
                    parameter.add_(torch.randn(parameter.shape, generator=chance) * 0.1)
        show_changes(collection, collection.add_model(head, {}, parent="v0"))
    said = capsys.readouterr().err
    counts = re.search(r"(\d+) of (\d+) sentences that it has not learned from .* higher, (\d+) lower", said)
    assert counts is not None
    rose, sentences, fell = map(int, counts.groups())
    assert 0 < rose + fell <= sentences <= 60
    moves = re.findall(rf"d\d+: place (\d+|below {DEPTH}) → (\d+|below {DEPTH})", said)
    assert len(moves) == min(rose, 3) + min(fell, 1)
    gains = [int(old) - int(new) for old, new in moves]
    assert gains[: min(rose, 3)] == sorted(gains[: min(rose, 3)], reverse=True)
    assert gains[-1] < 0 or fell == 0
