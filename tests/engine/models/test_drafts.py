"""Draft heads are bounded by count, bytes and expiry for each owner, and answer nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.guarded import guarded

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, GradientQuery, attention_parts, calls, head_bytes, vjp
from dsearch.engine.models import drafts as bounds
from dsearch.engine.models.drafts import DraftHeads
from dsearch.errors import Gone, InvalidRequest

checked = guarded(DraftHeads, "_drafts", free=("size", "__len__"))
DIMENSION = 32


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def moved(seed: int) -> Head:
    head, generator = Head(DIMENSION), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.key_delta += 0.3 * torch.randn(head.key_delta.shape, generator=generator)
    return head.eval()


def test_the_oldest_of_an_owner_makes_room_and_unused_ones_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    drafts = DraftHeads(clock)
    other = drafts.add(moved(0), "v0", "other").id
    names = [drafts.add(moved(n), "v0", "me").id for n in range(bounds.MAX_DRAFTS + 1)]
    assert len({other, *names}) == len(names) + 1
    with pytest.raises(Gone, match="hand the head in again"):
        drafts.get(names[0], "me")
    assert drafts.get(other, "other").parent == "v0"  # another owner's have stayed
    with pytest.raises(Gone):
        drafts.get(other, "me")
    assert not drafts.drop(other, "me")
    clock.now = bounds.EXPIRY_S - 1
    drafts.get(names[1], "me")  # used: it lives on
    clock.now = bounds.EXPIRY_S + 1
    assert drafts.get(names[1], "me").id == names[1]
    assert len(drafts) == 1
    assert drafts.drop(names[1], "me")
    assert (len(drafts), drafts.size) == (0, 0)
    size = drafts.add(moved(0), "v0", "me").size
    monkeypatch.setattr(bounds, "MAX_OWNER_BYTES", 2 * size)
    first, *_ = [drafts.add(moved(n), "v0", "you").id for n in range(3)]
    with pytest.raises(Gone):
        drafts.get(first, "you")
    monkeypatch.setattr(bounds, "MAX_BYTES", 2 * size)
    for owner in "abc":
        drafts.add(moved(0), "v0", owner)
    assert drafts.size == 2 * size
    monkeypatch.setattr(bounds, "MAX_OWNER_BYTES", size - 1)
    with pytest.raises(InvalidRequest, match=f"a draft of {size} bytes; use at most {size - 1}"):
        drafts.add(moved(0), "v0", "me")


def test_a_draft_answers_as_the_version_would_and_leaves_nothing(collection: Collection) -> None:
    head = moved(1)
    draft = calls.add_draft(collection, head_bytes(head), owner="me")
    assert (draft.parent, collection.store.models()) == ("v0", [])
    states = torch.nn.functional.normalize(torch.randn(2, DIMENSION), dim=1)
    asked = GradientQuery(states=states, draft=draft.draft, owner="me")
    found = attention_parts(collection, asked)
    assert (found.draft, found.stamp.model) == (draft.draft, "v0")
    version = collection.add_model(head, {})
    kept = attention_parts(collection, GradientQuery(states=states, model=version))
    assert found.ids == kept.ids
    torch.testing.assert_close(torch.tensor(found.weights), torch.tensor(kept.weights))
    again = GradientQuery(states=states, draft=draft.draft, owner="me", stamp=found.stamp)
    gradients = vjp(collection, again, context=torch.ones(2, DIMENSION).numpy())
    same = GradientQuery(states=states, stamp=kept.stamp)
    expected = vjp(collection, same, context=torch.ones(2, DIMENSION).numpy())
    torch.testing.assert_close(
        torch.tensor(gradients.head["key_delta"]), torch.tensor(expected.head["key_delta"])
    )
    with pytest.raises(Gone):
        attention_parts(collection, GradientQuery(states=states, draft=draft.draft, owner="you"))
    with pytest.raises(InvalidRequest, match="a draft that was made from v0, and another model"):
        attention_parts(collection, GradientQuery(states=states, model="v1", draft=draft.draft, owner="me"))
    other = {name: tensor.tolist() for name, tensor in moved(2).state_dict().items()}
    with pytest.raises(InvalidRequest, match="a draft and with_head; give one of the two"):
        attention_parts(collection, replace(asked, with_head=other))
    calls.drop_draft(collection, draft.draft, "me")
    with pytest.raises(Gone):
        attention_parts(collection, asked)


def test_the_least_recently_used_of_an_owner_makes_room_for_one_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_DRAFTS", 3)
    kept = DraftHeads()
    first, second, third = (kept.add(moved(0), "v0", "me").id for _ in range(3))
    kept.get(first, "me")
    fourth = kept.add(moved(0), "v0", "me").id
    with pytest.raises(Gone):
        kept.get(second, "me")
    assert [kept.get(id, "me").id for id in (first, third, fourth)] == [first, third, fourth]


def test_bytes_of_all_owners_are_bounded_and_others_go_first_used_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = DraftHeads()
    first, second = kept.add(moved(0), "v0", "a"), kept.add(moved(0), "v0", "b")
    monkeypatch.setattr(bounds, "MAX_BYTES", kept.size)
    kept.get(first.id, "a")
    third = kept.add(moved(0), "v0", "c")
    assert kept.get(first.id, "a") == first
    assert kept.get(third.id, "c") == third
    with pytest.raises(Gone):
        kept.get(second.id, "b")


def test_ids_cannot_be_guessed() -> None:
    kept = DraftHeads()
    assert {len(kept.add(Head(4), "v0", str(owner)).id) for owner in range(10)} == {24}


def test_the_size_of_a_draft_is_that_of_its_tensors() -> None:
    kept, head = DraftHeads(), Head(4)
    draft = kept.add(head, "v2", "me")
    assert draft.size == kept.size == sum(tensor.nbytes for tensor in head.own_tensors().values())
    assert kept.get(draft.id, "me") == draft
    assert kept.drop(draft.id, "me")
    assert len(kept) == 0
