"""Training over embeddings in bfloat16: half the memory, and what float32 learns, to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import Encoder
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.products import product
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.head_task import train_head, train_student
from dsearch.training.losses.objectives import OBJECTIVES, Batch, FrozenAttention, retention
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.options import TrainingOptions
from dsearch.training.ranking import corpus_embeddings
from dsearch.types import Document

WORDS = [f"word{n}" for n in range(30)]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """60 documents, a third of them with several passages, and 24 judged queries."""
    draw = np.random.default_rng(0)
    with SearchEngine(tmp_path_factory.mktemp("long") / "home", encoder=HashingEncoder) as engine:
        made: Collection = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
        texts = [" ".join(draw.choice(WORDS, 40 if n % 3 == 0 else 5)) for n in range(60)]
        made.ingest([Document(f"d{n}", text) for n, text in enumerate(texts)])
        queries = {f"q{n}": " ".join(texts[n].split()[:3]) for n in range(24)}
        yield examples_from_judgements(made, queries, {f"q{n}": {f"d{n}": 1.0} for n in range(24)})


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_products_with_rounded_rows_are_those_of_the_rounded_numbers(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsearch.products._ROUNDED_AT_ONCE", 1000)
    torch.manual_seed(0)
    left, right = torch.randn(3, 2, 16, requires_grad=True), torch.randn(rows, 16).bfloat16()
    found, wanted = product(left, right), left @ right.float().T
    torch.testing.assert_close(found, wanted)
    gradient = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad(out, left, gradient, retain_graph=True)[0] for out in (found, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("passages", [False, True], ids=["short", "passages"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_losses_and_gradients_are_those_of_rounded_embeddings(
    long: Examples, objective: str, heads: int, passages: bool
) -> None:
    """bfloat16 is only a way to store: the same numbers in float32 give the same loss and gradient."""
    corpus = corpus_embeddings(long.snapshot)
    further = FurtherPassages.of(long.snapshot, corpus) if passages else None
    assert not passages or further is not None
    rounded = torch.device("cpu"), torch.bfloat16
    stored = [corpus.bfloat16(), None if further is None else further.to(*rounded)]
    in_full = [stored[0].float(), None if stored[1] is None else stored[1].to(rounded[0], torch.float32)]
    results: list[list[torch.Tensor]] = []
    for of_corpus, of_further in (stored, in_full):
        head = Head(32, heads=heads, rank=4, seed=1)
        relevant = torch.arange(24)[:, None]
        batch = Batch(
            head=head,
            states=torch.as_tensor(long.states),
            keyword=torch.rand(24, 60, generator=torch.Generator().manual_seed(2)),
            corpus=of_corpus,
            relevant=relevant,
            target=torch.ones(24, 1),
            judged=torch.arange(24),
            scored=torch.arange(48).reshape(24, 2),
            teacher=torch.rand(24, 2, generator=torch.Generator().manual_seed(3)),
            mask=torch.ones(24, 2, dtype=torch.bool),
            further=of_further,
            generator=torch.Generator().manual_seed(4),
        )
        whole = of_corpus if of_further is None else of_further.beside(of_corpus)
        frozen = FrozenAttention(whole, 8)(torch.arange(8))
        loss = OBJECTIVES[objective](batch) + retention(head, whole[:8], whole, frozen)
        loss.backward()
        gradients = [one.grad for one in head.parameters() if one.grad is not None]
        results.append([loss.detach(), *gradients])
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-5)


def test_a_head_of_rounded_embeddings_is_that_of_whole_ones_to_rounding(long: Examples) -> None:
    heads = [
        train_head(long, TrainingOptions(epochs=2, batch_size=8, precision=precision, tune=False))
        for precision in ("float32", "bfloat16")
    ]
    whole, rounded = (head.query_delta.detach() for head in heads)
    assert whole.abs().max() > 1e-3
    assert not torch.equal(whole, rounded)
    assert float((whole - rounded).norm() / whole.norm()) < 0.05


def test_the_corpus_takes_two_bytes_a_number(long: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    import dsearch.training.head_task as scope

    sizes: list[int] = []

    class Watched(scope._FrozenDocuments):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            assert self._further is not None
            sizes.append(self._corpus.nbytes + self._further.embeddings.nbytes)

    monkeypatch.setattr(scope, "_FrozenDocuments", Watched)
    for precision in ("float32", "bfloat16"):
        train_head(long, TrainingOptions(epochs=1, precision=precision, tune=False))
    assert sizes[0] == 2 * sizes[1]


def test_a_query_encoder_learns_under_autocast(examples: Examples, tiny: Encoder) -> None:
    options = TrainingOptions(scope="query", epochs=1, precision="bfloat16", encoder_learning_rate=1e-3)
    student = train_student(examples, options, encoder=tiny)
    assert student.encoder is not None
    assert any(one.abs().max() > 0 for one in student.encoder.learning())
    assert all(one.isfinite().all() for one in student.head.parameters())


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="precision='int8'; use float32 or bfloat16"):
        TrainingOptions(precision="int8")
