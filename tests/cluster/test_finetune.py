"""Fine-tuning over shards ends with the head and the gate's report of one process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cluster_checks import WORDS
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.finetune import over, require_same_documents, require_trainable
from dsearch.cluster.release import split
from dsearch.cluster.shards.shard import LocalShards
from dsearch.cluster.training import ShardedCorpus, retention
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.errors import Conflict, InvalidRequest, NotInCluster
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, finetune
from dsearch.training.losses import objectives
from dsearch.training.ranking import corpus_embeddings
from dsearch.types import Document


@pytest.fixture
def food(tmp_path: Path) -> Iterator[Collection]:
    draw = random.Random(3)
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        made = engine.create("food")
        texts = [" ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 5))) for _ in range(90)]
        made.ingest([Document(f"d{number}", text) for number, text in enumerate(texts)])
        made.refresh()
        yield made


@pytest.fixture
def examples(food: Collection) -> Examples:
    """Queries whose documents share no word with them: there is something to learn."""
    draw = random.Random(5)
    qrels = {
        f"q{n}": {f"d{draw.randrange(90)}": float(draw.randint(1, 3)) for _ in range(draw.randint(1, 3))}
        for n in range(24)
    }
    queries = {name: f"question {name} {WORDS[int(name[1:]) % 5]}" for name in qrels}
    return examples_from_judgements(food, queries, qrels)


@pytest.fixture
def corpus(food: Collection, tmp_path: Path) -> Iterator[ShardedCorpus]:
    split(food.store, food.snapshot.generation, tmp_path / "release", 3)
    local = LocalShards(tmp_path / "release")
    yield ShardedCorpus(local.release, local)
    local.close()


@pytest.mark.parametrize(
    "options",
    [
        TrainingOptions(epochs=4, folds=0, tune=False, heads=2),
        TrainingOptions(epochs=4, folds=0, tune=False, keywords=False, retention=0.0),
        TrainingOptions(epochs=3, folds=2, batch_size=8),
    ],
)
def test_head_and_report_are_those_of_one_process(
    examples: Examples, corpus: ShardedCorpus, options: TrainingOptions
) -> None:
    if not options.keywords:  # examples of clicks have weights
        weights = np.linspace(0.1, 3.0, len(examples.texts), dtype=np.float32)
        examples = replace(examples, weights=weights / weights.mean())
    alone, there = finetune(examples, options), finetune(examples, options, task=over(corpus))
    for ours, theirs in zip(there.head.parameters(), alone.head.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)
    assert there.head.distance_from_identity() > 1e-3
    assert there.share == alone.share
    for ours, theirs in zip(there.gate.slices, alone.gate.slices, strict=True):
        assert (ours.name, ours.queries) == (theirs.name, theirs.queries)
        assert ours.after == pytest.approx(theirs.after, abs=1e-3)


def test_retention_and_its_gradient_are_those_of_one_process(food: Collection, corpus: ShardedCorpus) -> None:
    head = Head(32, heads=2, rank=4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    whole, drawn = corpus_embeddings(food.snapshot), torch.tensor([0, 29, 30, 89])
    learned = [one for one in head.parameters() if one.requires_grad]
    expected = objectives.retention(head, whole[drawn], whole)
    found = retention(corpus, head, drawn.numpy())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    wanted, given = (
        torch.autograd.grad(one, learned, allow_unused=True, materialize_grads=True)
        for one in (expected, found)
    )
    assert max(float(one.abs().max()) for one in wanted) > 1e-3
    for ours, theirs in zip(given, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_what_shards_cannot_learn_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="use 'listwise'"):
        require_trainable(TrainingOptions(objective="judged"))
    with pytest.raises(InvalidRequest, match="use scope='head'"):
        require_trainable(TrainingOptions(scope="query"))


def test_shards_of_other_documents_are_refused(food: Collection, corpus: ShardedCorpus) -> None:
    require_same_documents(corpus, food)
    food.upsert([Document("new", "zebra")])
    with pytest.raises(
        Conflict, match="start the shards again after a refresh with: dsearch refresh -c food"
    ):
        require_same_documents(corpus, food)
    food.refresh()
    with pytest.raises(Conflict, match="generation"):
        require_same_documents(corpus, food)


def test_long_documents_are_refused(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "homes", encoder=HashingEncoder) as engine:
        made = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
        made.ingest([Document("a", " ".join(WORDS * 3))])
        made.refresh()
        split(made.store, made.snapshot.generation, tmp_path / "long", 1)
        local = LocalShards(tmp_path / "long")
        with pytest.raises(NotInCluster, match="several passages"):
            require_same_documents(ShardedCorpus(local.release, local), made)
        local.close()
