"""A null slot takes its part in searches, is shown, saved with its head, and leaves the order alone."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchLayer, head_bytes, head_from_bytes
from dsearch.engine.evaluate import judged_answerability
from dsearch.engine.search.gradients import GradientQuery, attention_parts
from dsearch.engine.state.fields import VALUE
from dsearch.errors import UnsupportedFormat
from dsearch.types import Document

TEXTS = ["apple bread", "nothing of the kind", "zebra"]


def slotted(level: float = 8.0, slope: float = 0.6, heads: int = 1) -> Head:
    head = Head(32, heads=heads)
    head.open_null_slot(level, slope)
    return head.eval()


def test_it_takes_its_part_and_leaves_the_order(collection: Collection) -> None:
    version = collection.add_model(slotted(), {})
    plain = collection.search_batch(TEXTS, model="v0", explain=True)
    slot = collection.search_batch(TEXTS, model=version, explain=True)
    for before, after in zip(plain, slot, strict=True):
        nothing = after.attention.null_weight
        assert nothing is not None
        assert before.attention.null_weight is None
        assert [hit.id for hit in before.hits] == [hit.id for hit in after.hits]
        assert [hit.score for hit in before.hits] == pytest.approx([hit.score for hit in after.hits])
        shares = [hit.weight / (1 - nothing) for hit in after.hits]
        assert shares == pytest.approx([hit.weight for hit in before.hits], abs=1e-5)
        explained = after.hits[0].explain
        assert explained is not None
        assert explained.null_weight == nothing
    apple, nothing_like_it, _ = (one.attention.null_weight for one in slot)
    assert apple is not None
    assert nothing_like_it is not None
    assert apple < nothing_like_it


def test_candidates_and_pages_do_not_change_it(collection: Collection) -> None:
    states = torch.as_tensor(collection.encoder.encode_queries(TEXTS))
    few, many = (
        SearchLayer(collection.snapshot, slotted(), candidates=candidates)(states, TEXTS).null_weight
        for candidates in (10, 100)
    )
    torch.testing.assert_close(few, many)


def test_it_is_known_in_hybrid_search_alone(collection: Collection) -> None:
    version = collection.add_model(slotted(), {})
    for options in ({"mode": "dense"}, {"mode": "keyword"}):
        found = collection.search_batch(TEXTS, model=version, **options)  # type: ignore[arg-type]
        assert [one.attention.null_weight for one in found] == [None] * 3
    for options in ({"score": "cosine"}, {"temperature": 0.1}, {"pooling": "hard"}):
        layer = SearchLayer(collection.snapshot, slotted(), **options)  # type: ignore[arg-type]
        states = torch.as_tensor(collection.encoder.encode_queries(TEXTS))
        assert layer(states, TEXTS).null_weight is None


def test_predictions_are_of_what_the_slot_leaves(collection: Collection) -> None:
    collection.ingest([Document("new", text="apple and more", value=3.0)])
    version = collection.add_model(slotted(), {})
    (found,) = collection.predict(["apple"], field=VALUE, model=version).predictions
    assert found.mean == pytest.approx(3.0)  # its weights sum to 1 whatever the slot has


def test_attend_says_it_and_gradients_come_from_the_server(collection: Collection) -> None:
    version = collection.add_model(slotted(), {})
    parts = attention_parts(
        collection, GradientQuery(texts=TEXTS, model=version), include={"parts", "slopes"}
    )
    assert parts.null_weight.shape == (3,)
    assert parts.slopes is None
    np.testing.assert_allclose(parts.weights.sum(1) + parts.null_weight, 1, rtol=1e-5)


def test_gradients_through_a_search_reach_slot_head_and_query(collection: Collection) -> None:
    head = copy.deepcopy(slotted(heads=2)).double()
    layer = SearchLayer(collection.snapshot, head)
    states = torch.as_tensor(collection.encoder.encode_queries(TEXTS[:2])).double().requires_grad_()
    assert head.null_slot is not None

    def weights(states: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert slot is head.null_slot
        found = layer(states, TEXTS[:2])
        assert found.null_weight is not None
        return found.context, found.null_weight

    assert torch.autograd.gradcheck(weights, (states, head.null_slot))


def test_saved_with_its_head_and_old_heads_load_as_they_were(collection: Collection) -> None:
    version = collection.add_model(slotted(3.0, 0.5), {})
    kept = collection.head(version).null_slot
    assert kept is not None
    assert kept.tolist() == [3.0, 0.5]
    record = collection.store.model(version).record
    assert record["format"] == 5
    plain = collection.add_model(Head(32), {})
    assert collection.store.model(plain).record["format"] == 1
    assert collection.head(plain).null_slot is None
    again, _ = head_from_bytes(head_bytes(slotted(1.0, 2.0)), 32)
    assert again.null_slot is not None
    assert again.null_slot.tolist() == [1.0, 2.0]
    file = collection.store.path / "models" / version / "model.json"
    assert json.loads(file.read_text())["format"] == 5
    # A release that knows nothing of slots reads up to format 4, and must refuse.
    from dsearch.engine.models import files

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "NEWEST_FORMAT", 4)
        with pytest.raises(UnsupportedFormat, match="format 5; this release reads 1 to 4"):
            files.load_head(collection.store, version)


def test_folding_stays_exact(collection: Collection) -> None:
    """A refreshed generation carries the trained keys; the slot says what it said."""
    head = slotted()
    with torch.no_grad():
        head.key_delta.add_(0.05 * torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))
    version = collection.add_model(head, {})
    collection.promote(version)
    before = [one.attention.null_weight for one in collection.search_batch(TEXTS)]
    collection.refresh()
    after = [one.attention.null_weight for one in collection.search_batch(TEXTS)]
    assert after == pytest.approx(before, abs=1e-4)


def test_evaluation_says_how_well_it_is_told(collection: Collection) -> None:
    queries = {"a": "apple bread", "b": "lemon mango", "c": "zebra", "d": "quantum tunnel", "e": " "}
    qrels = {"a": {"d0": 1}, "b": {"d10": 2}, "c": {"d0": 0}, "d": {"d3": 0, "d4": -1}, "e": {"d0": 0}}
    version = collection.add_model(slotted(), {})
    told = judged_answerability(collection, queries, qrels, model=version)
    assert told is not None
    assert (told.answerable, told.unanswerable) == (2, 2)
    assert told.auroc == 1.0
    assert told.calibration_error is not None
    without = judged_answerability(collection, queries, qrels, model="v0")
    assert without is not None
    assert without.auroc == 1.0
    assert without.calibration_error is None
    for of_one_kind in ({"a": {"d0": 1}}, {"c": {"d0": 0}}, {}):
        assert judged_answerability(collection, queries, of_one_kind) is None
