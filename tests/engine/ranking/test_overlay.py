"""An overlay searches as a collection of changed embeddings would, and goes with its documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from dsearch.attention.head import Head
from dsearch.attention.overlay import KeyOverlay, bounded
from dsearch.engine import Collection, SearchEngine, SearchLayer, head_bytes, head_from_bytes
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.engine.search.gradients import Question, attention_parts
from dsearch.errors import CorruptData, DimensionMismatch, InvalidRequest
from dsearch.types import Document

CHANGED = [3, 7, 8, 20]


def unit(*shape: int) -> np.ndarray:
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (numbers / np.linalg.norm(numbers, axis=-1, keepdims=True)).astype(np.float32)


def changes(count: int, bound: float = 0.5) -> torch.Tensor:
    return torch.as_tensor(unit(count, 8)) * bound


@pytest.fixture
def points(engine: SearchEngine) -> Collection:
    made = engine.create("points", dimension=8)
    made.upsert([Document(f"d{n}", f"number {n}") for n in range(60)], unit(60, 8))
    made.refresh()
    made.upsert([Document(f"d{n}", f"number {n}") for n in range(60, 64)], unit(64, 8)[60:])
    return made


def overlaid_head(points: Collection, ids: list[int], seed: int = 0) -> Head:
    rows = points.store.rows_of([f"d{n}" for n in ids])
    head = Head(8).eval()
    with torch.no_grad():
        head.key_delta.add_(0.2 * torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)))
    order = sorted(range(len(ids)), key=lambda place: rows[f"d{ids[place]}"])
    at = torch.tensor([rows[f"d{ids[place]}"] for place in order])
    head.overlay = KeyOverlay(at, changes(len(ids))[order], 0.5)
    return head


@pytest.mark.parametrize("candidates", [12, 100])
@pytest.mark.parametrize("hops", [1, 2])
def test_searching_equals_an_index_of_changed_keys(points: Collection, candidates: int, hops: int) -> None:
    ids = [*CHANGED, 62]
    head = overlaid_head(points, ids)
    assert head.overlay is not None
    with torch.no_grad():
        head.hop_strength.fill_(0.8)
    queries = torch.as_tensor(unit(9, 8))
    layer = SearchLayer(points.snapshot, head, mode="dense", candidates=candidates, hops=hops)
    found = layer(queries)
    state = points.snapshot
    every = np.concatenate([state.generation.embeddings, state.fresh.embeddings])
    at = state.positions_of(head.overlay.rows.numpy())
    changed = every.copy()
    changed[at] += head.overlay.changes.numpy()
    turned = head.queries(queries)
    for hop in range(hops):
        logits = (head.fold(turned) @ torch.as_tensor(changed).T)[:, 0] / head.temperature
        best = logits.topk(10).indices if candidates >= 10 else logits.topk(candidates).indices
        if hop + 1 < hops:
            from dsearch.attention import refine

            weights = logits.gather(1, best).softmax(-1)[:, None]
            turned = refine(turned, weights, head.keys(torch.as_tensor(changed)[best]), 0.8)
    expected = logits.topk(candidates if candidates < 64 else 64).indices
    # Candidates are the union of both legs, at least the best; their order and scores are those of the index.
    np.testing.assert_array_equal(found.positions[:, : min(candidates, 64)], expected.numpy())
    scores = logits.gather(1, expected) * head.temperature
    torch.testing.assert_close(found.scores[:, : expected.shape[1]], scores, atol=1e-5, rtol=1e-4)
    whole = logits.softmax(-1).gather(1, torch.as_tensor(found.positions)).sum(1)
    torch.testing.assert_close(covered_mass(found, layer, None), whole, atol=1e-5, rtol=1e-4)
    # What is pooled are the values of the documents as they are stored.
    pooled = torch.einsum(
        "bc,bcd->bd", found.weights, torch.as_tensor(every)[torch.as_tensor(found.positions)]
    )
    torch.testing.assert_close(found.context, pooled, atol=1e-5, rtol=1e-4)


def test_gradients_and_keys_are_those_of_changed_keys(points: Collection) -> None:
    head = overlaid_head(points, CHANGED)
    version = points.add_model(head, {})
    states = torch.as_tensor(unit(3, 8))
    options = {"mode": "dense", "candidates": 100}
    question = Question(states=states, model=version, dtype="float64", options=options)  # type: ignore[arg-type]
    parts = attention_parts(points, question, include={"keys", "slopes", "parts"})
    turned = head.queries(states)[:, 0].double().detach().numpy()
    np.testing.assert_allclose(
        np.einsum("bd,bcd->bc", turned, parts.arrays["keys"]), parts.arrays["dense"][:, 0], atol=1e-6
    )
    moved = states.double().requires_grad_()
    layer = SearchLayer(points.snapshot, points.head(version).double(), mode="dense", candidates=100)
    layer(moved).dense[:, 0, 0].sum().backward()
    assert moved.grad is not None
    np.testing.assert_allclose(parts.arrays["slopes"][:, 0, 0], moved.grad.numpy(), atol=1e-6)


def test_updated_and_deleted_documents_lose_theirs(points: Collection) -> None:
    version = points.add_model(overlaid_head(points, CHANGED), {})
    query = torch.as_tensor(unit(1, 8))

    def changed_ids() -> set[str]:
        layer, stamp = points.layer_and_stamp(model=version, mode="dense", candidates=100)
        assert stamp.model == version
        if layer.overlaid is None:
            return set()
        return set(points.ids_at(points.snapshot, layer.overlaid.positions[None])[0])

    assert changed_ids() == {"d3", "d7", "d8", "d20"}
    points.upsert([Document("d7", "another text")], unit(1, 8))
    points.delete(["d20"])
    assert changed_ids() == {"d3", "d8"}
    points.refresh()
    assert changed_ids() == {"d3", "d8"}
    points.delete(["d3", "d8"])
    assert changed_ids() == set()
    layer, _ = points.layer_and_stamp(model=version, mode="dense")
    assert layer(query).positions.shape[1] > 0


def test_saved_with_its_version_and_gone_with_it(points: Collection, tmp_path: Path) -> None:
    version = points.add_model(overlaid_head(points, CHANGED), {})
    record = points.store.model(version).record
    assert record["format"] == 6
    kept = points.head(version).overlay
    assert kept is not None
    assert kept.bound == 0.5
    file = points.store.path / "models" / version / "overlay.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    from dsearch.engine.models.files import load_head

    with pytest.raises(CorruptData, match=r"overlay\.safetensors has SHA-256"):
        load_head(points.store, version)
    points.delete_model(version)
    assert not file.exists()
    plain = points.add_model(Head(8), {})
    assert points.head(plain).overlay is None


def test_long_documents_are_changed_in_every_passage(engine: SearchEngine) -> None:
    made = engine.create("long")
    words = [f"word{n}" for n in range(400)]
    made.ingest(
        [Document("long", text=" ".join(words)), *(Document(f"s{n}", text=f"word{n} x") for n in range(30))]
    )
    state = made.snapshot
    if state.passages is None:
        pytest.skip("this encoder takes the whole text")
    row = made.store.rows_of(["long"])["long"]
    head = Head(32).eval()
    head.overlay = KeyOverlay(torch.tensor([row]), 0.5 * torch.ones(1, 32) / 32**0.5, 0.5)
    states = torch.as_tensor(made.encoder.encode_queries(["word3 word4", "word390 word391"]))
    found = SearchLayer(state, head, mode="dense", candidates=5)(states)
    plain = SearchLayer(state, Head(32).eval(), mode="dense", candidates=100)(states)
    at = state.positions_of(np.array([row]))[0]
    shift = states @ head.overlay.changes[0]
    for query in range(2):
        after = found.dense[query, 0, found.positions[query].tolist().index(at)]
        before = plain.dense[query, 0, plain.positions[query].tolist().index(at)]
        torch.testing.assert_close(after, before + shift[query])


def test_changes_are_bounded() -> None:
    wild = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    kept = bounded(wild, 1.0)
    torch.testing.assert_close(kept, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    KeyOverlay(torch.tensor([1, 2, 5]), kept, 1.0)
    with pytest.raises(InvalidRequest, match="length 5 above the bound of 1"):
        KeyOverlay(torch.tensor([1, 2, 5]), wild, 1.0)
    with pytest.raises(InvalidRequest, match="do not ascend"):
        KeyOverlay(torch.tensor([2, 1, 5]), kept, 1.0)
    with pytest.raises(InvalidRequest, match="bound=2"):
        KeyOverlay(torch.tensor([1, 2, 5]), kept, 2.0)
    with pytest.raises(InvalidRequest, match="a change of length nan"):
        KeyOverlay(torch.tensor([1, 2, 5]), kept * torch.nan, 1.0)


@pytest.mark.usefixtures("unchecked")
def test_one_change_a_row() -> None:
    with pytest.raises(DimensionMismatch, match="give one for each"):
        KeyOverlay(torch.tensor([1, 2]), torch.zeros(3, 4), 1.0)


def test_no_certificate_is_given(points: Collection) -> None:
    version = points.add_model(overlaid_head(points, CHANGED), {})
    attended = points.attend(torch.as_tensor(unit(1, 8)), model=version, certify=1, candidates=5)
    assert attended.certificate is not None
    assert not attended.certificate.proved.any()
    assert "changes the keys of single documents" in attended.certificate.reason


def test_it_travels_with_its_head_as_bytes(points: Collection) -> None:
    head = overlaid_head(points, CHANGED)
    read, record = head_from_bytes(head_bytes(head), 8)
    assert (read.overlay is not None, record) == (True, {})
    assert read.overlay.bound == head.overlay.bound
    torch.testing.assert_close(read.overlay.rows, head.overlay.rows, rtol=0, atol=0)
    torch.testing.assert_close(read.overlay.changes, head.overlay.changes, rtol=0, atol=0)
    queries = torch.as_tensor(unit(5, 8))
    before, after = (SearchLayer(points.snapshot, one, mode="dense")(queries) for one in (head, read))
    torch.testing.assert_close(after.scores, before.scores, rtol=0, atol=0)
    assert head_from_bytes(head_bytes(Head(8)), 8)[0].overlay is None


@pytest.mark.parametrize(
    ("name", "given", "error", "said"),
    [
        ("bound", None, DimensionMismatch, "give overlay.rows .changed., overlay.changes .changed, 8. and"),
        ("changes", torch.zeros(4, 9), DimensionMismatch, "an overlay of shapes"),
        ("changes", torch.zeros(3, 8), DimensionMismatch, "an overlay of shapes"),
        ("changes", torch.zeros(4, 8).double(), InvalidRequest, "'overlay.changes' is float64; send float32"),
        ("changes", torch.full((4, 8), torch.nan), InvalidRequest, "a change of length nan above the bound"),
        ("changes", torch.ones(4, 8), InvalidRequest, "a change of length 2.828 above the bound of 0.5"),
        ("rows", torch.ones(4), InvalidRequest, "'overlay.rows' is float32; send int64"),
        ("rows", torch.tensor([4, 3, 2, 1]), InvalidRequest, "rows of an overlay that do not ascend"),
        ("rows", torch.tensor([-1, 3, 4, 5]), InvalidRequest, "row -1 in an overlay; rows begin at 0"),
        ("bound", torch.tensor(7.0), InvalidRequest, "bound=7.0; use a number above 0, at most 1"),
        ("bound", torch.tensor(torch.nan), InvalidRequest, "bound=nan; use a number above 0"),
    ],
)
def test_bytes_with_what_is_no_overlay_are_refused(
    points: Collection, name: str, given: torch.Tensor | None, error: type[Exception], said: str
) -> None:
    tensors = load(head_bytes(overlaid_head(points, CHANGED)))
    del tensors[f"overlay.{name}"]
    if given is not None:
        tensors[f"overlay.{name}"] = given
    with pytest.raises(error, match=said):
        head_from_bytes(save(tensors), 8)
