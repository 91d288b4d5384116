"""Training over shards: loss and gradient are those of one process over all documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cluster_checks import WORDS
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.release import split
from dsearch.cluster.shards.shard import LocalShards
from dsearch.cluster.training import ShardedCorpus, listwise
from dsearch.engine import Collection, SearchEngine
from dsearch.training.losses.objectives import OBJECTIVES, Batch
from dsearch.types import Document

QUERIES = ["apple bread", "egg flour egg", "kale", "zebra"]


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    draw = random.Random(3)
    with SearchEngine(tmp_path_factory.mktemp("training") / "home", encoder=HashingEncoder) as engine:
        made = engine.create("food")
        texts = [" ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 5))) for _ in range(90)]
        made.ingest([Document(f"d{number}", text) for number, text in enumerate(texts)])
        made.refresh()
        yield made


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("bm25", [None, (0.6, 0.3)])
@pytest.mark.parametrize(("shards", "heads"), [(1, 1), (2, 3), (5, 2)])
def test_loss_and_gradient_are_those_of_one_process(
    food: Collection,
    tmp_path: Path,
    shards: int,
    heads: int,
    words: bool,
    bm25: tuple[float, float] | None,
) -> None:
    snapshot = food.snapshot.with_bm25(bm25)
    head = Head(32, heads=heads, rank=4)
    generator = torch.Generator().manual_seed(heads)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    if bm25 is not None:
        head.weigh_keywords(*bm25)
    relevant = np.array([[3, 50, -1], [89, -1, -1], [0, 45, 46], [17, 18, -1]])
    target = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0.2, 0.3, 0.5], [0.75, 0.25, 0]])
    states = food.query_states(QUERIES, "hybrid").requires_grad_()
    texts = QUERIES if words else None
    batch = Batch(
        head=head,
        states=states,
        keyword=torch.as_tensor(snapshot.all_keyword_scores(QUERIES)) if words else None,
        corpus=torch.as_tensor(np.array(snapshot.generation.embeddings)),
        relevant=torch.as_tensor(relevant).clamp_min(0),
        target=target,
        judged=torch.arange(90),
        scored=torch.zeros(4, 0, dtype=torch.int64),
        teacher=torch.zeros(4, 0),
        mask=torch.zeros(4, 0, dtype=torch.bool),
    )
    expected = OBJECTIVES["listwise"](batch)
    learned = [states, *(one for one in head.parameters() if one.requires_grad)]
    wanted = torch.autograd.grad(expected, learned, allow_unused=True, materialize_grads=True)

    split(food.store, snapshot.generation, tmp_path / "release", shards)
    local = LocalShards(tmp_path / "release")
    found = listwise(ShardedCorpus(local.release, local), head, states, texts, relevant, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(found, learned, allow_unused=True, materialize_grads=True), wanted, strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    assert wanted[0].abs().max() > 1e-3
    if words:
        names = [name for name, _ in head.named_parameters()]
        assert wanted[1 + names.index("keyword_weight")].abs().max() > 1e-4
    local.close()
