"""What an overlay learns, within its bound, and that it is kept only where held-out queries gain by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.attention.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.training import Gate, TrainingOptions, finetune
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.overlay import OverlayOptions, changed_corpus, learn_overlay, with_overlay
from dsearch.training.ranking import Ranking, ndcg_at_10
from dsearch.types import Document

DIMENSION, DOCUMENTS, ASKED, EACH = 48, 120, 20, 6


def unit(array: np.ndarray) -> np.ndarray:
    return (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def moved(engine: SearchEngine) -> Collection:
    generator = np.random.default_rng(0)
    made = engine.create("moved", dimension=DIMENSION)
    stored = unit(generator.standard_normal((DOCUMENTS, DIMENSION)))
    made.upsert([Document(f"d{n}", f"number {n}") for n in range(DOCUMENTS)], stored)
    return made


def questions(moved: Collection, *, turned: float = 2.0) -> Examples:
    """Each of twenty documents is asked for from another side than it stands at, the same side each time."""
    generator = np.random.default_rng(1)
    state = moved.snapshot
    asked = np.repeat(np.arange(ASKED), EACH)
    side = unit(generator.standard_normal((ASKED, DIMENSION))) * turned
    stored = state.embeddings(asked)
    states = unit(stored + side[asked] + 0.1 * generator.standard_normal(stored.shape))
    relevant = [(np.array([at]), np.ones(1, np.float32)) for at in asked]
    return Examples(state, [f"question {n}" for n in range(len(asked))], states, relevant, {}, "digest")


def score(head: Head, examples: Examples, overlay: object = None) -> float:
    corpus, further = (None, None) if overlay is None else changed_corpus(examples, overlay)  # type: ignore[arg-type]
    top = Ranking(examples, keywords=False).top(head, corpus=corpus, further=further)
    return float(ndcg_at_10(top, examples.relevant).mean())


@pytest.mark.parametrize("bound", [0.05, 0.5])
def test_changes_learn_within_their_bound(moved: Collection, bound: float) -> None:
    examples, head = questions(moved), Head(DIMENSION)
    options = OverlayOptions(bound=bound, learning_rate=0.05, decay=0.0)
    overlay = learn_overlay(head, examples, options, keywords=False)
    lengths = overlay.changes.norm(dim=1)
    assert lengths.max() <= bound * (1 + 1e-5)
    assert lengths.max() > 0.9 * bound  # it would go further
    assert len(overlay) == ASKED
    gain = score(head, examples, overlay) - score(head, examples)
    assert gain > (0.1 if bound == 0.5 else 0.0)
    for parameter in head.parameters():
        assert parameter.grad is None


def test_a_document_goes_to_where_it_is_asked_for(moved: Collection) -> None:
    """Asked for by one query alone: the optimum is the whole bound, in the direction of that query."""
    examples = questions(moved).subset([0])
    options = OverlayOptions(bound=0.3, learning_rate=0.02, epochs=400, decay=0.0)
    overlay = learn_overlay(
        Head(DIMENSION),
        examples,
        options,
        keywords=False,
    )
    towards = torch.as_tensor(examples.states.mean(0))
    cosine = torch.cosine_similarity(overlay.changes[0], towards, dim=0)
    assert cosine > 0.95  # of the signs alone it would be .80
    assert overlay.changes[0].norm().item() == pytest.approx(0.3, rel=1e-3)


def test_searches_rank_by_what_was_learned(moved: Collection) -> None:
    examples, head = questions(moved), Head(DIMENSION)
    options = OverlayOptions(bound=0.5, learning_rate=0.05, decay=0.0)
    head.overlay = learn_overlay(head, examples, options, keywords=False)
    version = moved.add_model(head.eval(), {})
    layer, _ = moved.layer_and_stamp(model=version, mode="dense")
    found = layer(torch.as_tensor(examples.states)).positions[:, :10]
    corpus, further = changed_corpus(examples, head.overlay)
    top = Ranking(examples, keywords=False).top(head, corpus=corpus, further=further)
    np.testing.assert_array_equal(found, top)


def trained(examples: Examples) -> tuple[object, TrainingOptions]:
    options = TrainingOptions(epochs=1, learning_rate=1e-5, folds=0, keywords=False, tune=False)
    return finetune(examples, options), options


def test_kept_where_others_ask_for_the_same(moved: Collection) -> None:
    examples = questions(moved)
    before, options = trained(examples)
    fast = OverlayOptions(bound=0.5, learning_rate=0.05)
    after, report = with_overlay(before, examples, options, fast, gate=Gate())  # type: ignore[arg-type]
    assert report.passed, report.to_text()
    assert after.head.overlay is not None
    assert before.head.overlay is None  # type: ignore[attr-defined]
    told = after.record["overlay"]
    assert (told["kept"], told["documents"], told["bound"]) == (True, ASKED, 0.5)
    whole = told["gate"]["slices"][0]
    assert whole["after"] > whole["before"]


def test_left_out_where_each_asks_for_another(moved: Collection) -> None:
    """Every document is asked for once: what is learned of one says nothing of the others."""
    examples = questions(moved).subset(list(range(0, ASKED * EACH, EACH)))
    before, options = trained(examples)
    after, report = with_overlay(before, examples, options, OverlayOptions(bound=0.5))  # type: ignore[arg-type]
    assert not report.passed
    assert after.head.overlay is None
    assert after.record["overlay"]["kept"] is False


def test_what_cannot_be_is_refused(moved: Collection) -> None:
    examples = questions(moved)
    before, _ = trained(examples)
    with pytest.raises(InvalidRequest, match="use scope head"):
        with_overlay(before, examples, TrainingOptions(scope="query"))  # type: ignore[arg-type]
    for wrong in ({"bound": 0.0}, {"bound": 1.5}, {"epochs": 0}, {"learning_rate": 2.0}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            OverlayOptions(**wrong)  # type: ignore[arg-type]
