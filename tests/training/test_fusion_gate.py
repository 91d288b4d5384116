"""Learning how much keywords count by the query: exact, and what no constant weight can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.opened_heads import batch_of, opened_head, unit
from support.training.opened_heads import seeded as seeded  # a fixture for every test here

from dsearch.attention.fusion_gate import FEATURES
from dsearch.attention.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, finetune, train_head
from dsearch.training.finetune.head import lessons_of
from dsearch.training.gate.selection import part_of_the_way, reweighed
from dsearch.training.losses.objectives import OBJECTIVES, Batch
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.losses.values import pooled_values
from dsearch.training.ranking import KeywordScores, Ranking
from dsearch.training.scopes.head import head_groups
from dsearch.types import Document

PAIRS = 40


def gated(head: Head) -> Head:
    """The same head with a gate that was moved."""
    made = Head(**head.config(), fusion="gate").double()
    made.load_state_dict({**made.state_dict(), **head.state_dict()})
    assert made.fusion_gate is not None
    with torch.no_grad():
        for parameter in made.fusion_gate.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return made


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
@pytest.mark.parametrize("long", [False, True])
def test_every_objective_weighs_each_query_by_its_factor(objective: str, long: bool) -> None:
    """A weight times a factor of the query is that weight on scores times the factor."""
    constant = opened_head(8, 1)
    head, features = gated(constant), torch.randn(4, FEATURES, dtype=torch.float64)
    batch = replace(
        batch_of(head, unit(20, 8)),
        further=FurtherPassages(unit(3, 8), torch.tensor([2, 2, 9])) if long else None,
        features=features,
        generator=torch.Generator().manual_seed(1),
    )
    assert batch.keyword is not None
    assert head.fusion_gate is not None
    scaled = batch.keyword * head.fusion_gate(features)
    same = replace(batch, head=constant, keyword=scaled, generator=torch.Generator().manual_seed(1))
    found, expected = OBJECTIVES[objective](batch), OBJECTIVES[objective](replace(same, features=None))
    torch.testing.assert_close(found, expected)
    learned = [head.keyword_weight, head.query_delta, *head.fusion_gate.parameters()]
    theirs = [constant.keyword_weight, constant.query_delta, *head.fusion_gate.parameters()]
    for mine, other in zip(
        torch.autograd.grad(found, learned), torch.autograd.grad(expected, theirs), strict=True
    ):
        torch.testing.assert_close(mine, other)
        assert mine.abs().max() > 1e-8


class Meanings(HashingEncoder):
    """Embeddings that were chosen for each text."""

    def __init__(self, meanings: dict[str, np.ndarray]):
        super().__init__(64)
        self.meanings = meanings

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.meanings[text] for text in texts]).astype(np.float32)

    encode_documents = encode_queries


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Collection, Examples]:
    """Questions that are a number want the document with that number, and mean another; questions that are a
    name want what they mean, and another document has the name. A meaning scores .4, a word b(q, d).
    """
    names = ["bcdfghjklmnpqrstvwxz"[i % 20] + "aeiou"[i // 20] + "rk" for i in range(PAIRS)]
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0]
    meanings = {f"{names[i]} 7{i:02d}": vectors[i] for i in range(PAIRS)}
    queries: dict[str, str] = {}
    for i in range(PAIRS):
        other = (i + 1) % PAIRS
        queries[f"q{i}"], meant = (f"7{i:02d}", other) if i % 2 else (names[other], i)
        meanings[queries[f"q{i}"]] = 0.4 * vectors[meant] + np.sqrt(1 - 0.4**2) * vectors[PAIRS + i % 20]
    engine = SearchEngine(tmp_path / "home", encoder=lambda: Meanings(meanings))
    collection = engine.create("halves")
    collection.ingest([Document(f"d{i}", f"{names[i]} 7{i:02d}") for i in range(PAIRS)])
    judged = {f"q{i}": {f"d{i}": 1.0} for i in range(PAIRS)}
    return collection, examples_from_judgements(collection, queries, judged)


def right(collection: Collection, examples: Examples, head: Head) -> float:
    """The share of queries whose document is found first, as it is served."""
    version = collection.add_model(head, {})
    found = collection.search_batch(examples.texts, limit=1, model=version)
    wanted = collection.ids_at(examples.snapshot, np.array([[at[0]] for at, _ in examples.relevant]))
    return float(np.mean([one.hits[0].id == id[0] for one, id in zip(found, wanted, strict=True)]))


def fused(examples: Examples, fusion: str, steps: int = 150) -> Head:
    """A head of which temperature, keyword weight and gate alone were trained."""
    head = Head(64, fusion=fusion)
    keyword = KeywordScores(examples)
    which = torch.arange(len(examples))
    corpus = torch.as_tensor(np.array(examples.snapshot.generation.embeddings))
    relevant = torch.as_tensor(np.stack([at for at, _ in examples.relevant]))
    learned = head_groups(head, TrainingOptions(fusion=fusion, train_keys=False))[1]["params"]
    optimiser = torch.optim.Adam(learned, lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        OBJECTIVES["listwise"](
            Batch(
                head=head,
                states=torch.as_tensor(examples.states),
                keyword=keyword(which),
                corpus=corpus,
                relevant=relevant,
                target=torch.ones(relevant.shape),
                judged=which,
                scored=relevant,
                teacher=torch.ones(relevant.shape),
                mask=torch.ones(relevant.shape, dtype=torch.bool),
                features=keyword.features(which, head),
            )
        ).backward()
        optimiser.step()
    return head.eval()


def test_a_gate_learns_what_no_constant_can(halves: tuple[Collection, Examples]) -> None:
    collection, examples = halves
    learning, others = examples.subset(range(20)), examples.subset(range(20, PAIRS))
    for weight in (0.0, 0.5, 0.9, 1.1, 2.0, 5.0):
        constant = Head(64)
        with torch.no_grad():
            constant.keyword_weight.fill_(weight)
        assert right(collection, examples, constant) <= 0.55
    assert right(collection, others, fused(learning, "constant")) <= 0.55
    head = fused(learning, "gate")
    assert right(collection, others, head) == 1.0  # the optimum, on queries it has not seen
    weights = head.keyword_weights(2, torch.as_tensor(examples.snapshot.query_features(["705", "bark"])))
    assert weights[0, 0] > 2 * weights[1, 0]


def test_rankings_of_training_are_those_that_are_served(halves: tuple[Collection, Examples]) -> None:
    collection, examples = halves
    head = fused(examples, "gate", steps=20)
    version = collection.add_model(head, {})
    for strength in (0.0, 0.6):
        found = Ranking(examples).top(head, 2, hop_strength=strength)  # the rest ties, at 0
        served = collection.search_batch(
            examples.texts, limit=2, model=version, hops=2 if strength else 1, hop_strength=strength
        )
        for row, result in zip(found, served, strict=True):
            assert collection.ids_at(examples.snapshot, row[None])[0] == [hit.id for hit in result.hits]


@pytest.mark.parametrize("heads", [1, 2])
def test_a_training_run_with_a_gate(halves: tuple[Collection, Examples], heads: int) -> None:
    collection, examples = halves
    options = TrainingOptions(epochs=4, learning_rate=1e-2, folds=2, fusion="gate", heads=heads, tune=False)
    trained = finetune(examples, options)
    assert trained.record["options"]["fusion"] == "gate"
    gate = trained.head.fusion_gate
    again = train_head(examples, options)
    assert gate is not None
    assert again.fusion_gate is not None
    assert again.fusion_gate.outer.abs().max() > 1e-3
    version = collection.add_model(trained.head, trained.record)
    assert collection.head(version).fusion == "gate"
    # What goes on from it takes over the constant; its gate starts anew, or there is none.
    further = train_head(examples, replace(options, fusion="constant", epochs=1), start=trained.head)
    assert further.fusion_gate is None
    assert train_head(examples, options).fusion_gate is not None
    assert all(
        torch.equal(one, other)
        for one, other in zip(again.parameters(), train_head(examples, options).parameters(), strict=True)
    )


def test_part_of_the_way_and_other_weights_leave_a_gate_between(
    halves: tuple[Collection, Examples],
) -> None:
    _, examples = halves
    before, head = Head(64, fusion="gate"), fused(examples, "gate", steps=30)
    features = torch.as_tensor(examples.snapshot.query_features(["705", "bark"]))
    start = before.keyword_weights(2, features).diff(dim=0).abs()
    half = part_of_the_way(before, head, 0.5).keyword_weights(2, features).diff(dim=0).abs()
    whole = head.keyword_weights(2, features).diff(dim=0).abs()
    assert start < half < whole
    torch.testing.assert_close(
        reweighed(head, 1.6).keyword_weights(2, features), 1.6 * head.keyword_weights(2, features)
    )


def test_lessons_of_a_gated_head(halves: tuple[Collection, Examples]) -> None:
    """A constant weight on scores times each query's factor is the same model."""
    _, examples = halves
    head = fused(examples, "gate", steps=30)
    taught = lessons_of(examples, head, TrainingOptions(fusion="gate"))
    constant = Head(64)
    constant.load_state_dict(
        {name: one for name, one in head.state_dict().items() if not name.startswith("fusion_gate")}
    )
    plain = lessons_of(examples, constant, TrainingOptions())
    assert not np.allclose(taught.pulls, plain.pulls, atol=1e-4)

    factors = head.keyword_weights(PAIRS, torch.as_tensor(examples.snapshot.query_features(examples.texts)))
    keyword = torch.as_tensor(examples.snapshot.all_keyword_scores(examples.texts))
    corpus = torch.as_tensor(np.array(examples.snapshot.generation.embeddings))
    logits = (torch.as_tensor(examples.states) @ corpus.T + factors * keyword) / head.temperature
    target = torch.zeros_like(logits)
    for row, (at, _) in enumerate(examples.relevant):
        target[row, at[0]] = 1
    expected = (target - logits.softmax(-1)) @ corpus
    np.testing.assert_allclose(taught.pulls, expected.detach(), atol=1e-5)


@pytest.mark.parametrize("blocks", [False, True])
def test_values_are_pooled_by_the_weights_of_each_query(
    blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks:
        monkeypatch.setattr("dsearch.training.losses.values._PLAIN_LOGITS", 0)
    constant = opened_head(8, 1)
    head, features = gated(constant), torch.randn(4, FEATURES, dtype=torch.float64)
    states, corpus, keyword = unit(4, 8), unit(9, 8), torch.rand(4, 9, dtype=torch.float64)
    values, own = torch.randn(9, 2, dtype=torch.float64), torch.tensor([0, 3, -1, 8])
    found = pooled_values(head, states, corpus, values, own, keyword=keyword, features=features)
    assert head.fusion_gate is not None
    scaled = keyword * head.fusion_gate(features).detach()
    expected = pooled_values(constant, states, corpus, values, own, keyword=scaled)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert head.fusion_gate.outer.grad is not None
    assert head.fusion_gate.outer.grad.abs().max() > 1e-8


def test_what_has_no_keywords_has_no_gate() -> None:
    with pytest.raises(InvalidRequest, match="fusion='gate' without keywords"):
        TrainingOptions(fusion="gate", keywords=False)
    with pytest.raises(InvalidRequest, match="fusion='deep'; use one of constant, gate"):
        TrainingOptions(fusion="deep")
