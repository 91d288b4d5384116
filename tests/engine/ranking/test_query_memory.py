"""A model with a query memory answers by its formula, explains it, and is stored with its rows."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.judged_memory import memory_of_judged
from support.fakes import HashingEncoder
from support.locks import WatchedLock, waiting

from dsearch.attention.memory_rows import LENDING, LENDING_LEVEL, NEIGHBOURS, Recalled
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.engine.models import memory as models_memory
from dsearch.engine.models.memory import memory_bytes, memory_from_bytes
from dsearch.engine.models.tensors import head_from_tensors, head_tensors, require_head_alone
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking import coverage, whole
from dsearch.engine.ranking import memory as memory_module
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.engine.ranking.memory import SnapshotMemory
from dsearch.engine.search.gradients import GradientQuery, vjp
from dsearch.errors import Conflict, CorruptData, InvalidRequest
from dsearch.types import Document

WORDS = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey", "ice", "jam"]
PAST = ["apple bread", "cheese dough", "egg flour"]
JUDGED = [{"d3": 2.0, "d0": 1.0}, {"d3": 1.0, "d11": 1.0}, {"d20": 3.0}]


def document(n: int) -> Document:
    return Document(f"d{n}", f"{WORDS[n % 10]} {WORDS[(n * 3 + 1) % 10]} {WORDS[n // 10]} number{n}")


@pytest.fixture
def papers(engine: SearchEngine) -> Collection:
    papers = engine.create("papers")
    papers.ingest([document(n) for n in range(40)])
    return papers


def memory_over(papers: Collection, strength: float = 0.6, lending: float = 1.0) -> QueryMemory:
    return memory_of_judged(papers, PAST, JUDGED, strength=strength, lending=lending)


def remembering(papers: Collection, heads: int = 1, lending: float = 1.0) -> Head:
    head = Head(papers.store.dimension, heads=heads)
    head.memory = memory_over(papers, lending=lending)
    return head.eval()


def by_hand(papers: Collection, head: Head, query: str) -> dict[int, float]:
    """γ M of every visible position, in plain numbers."""
    memory, snapshot = head.memory, papers.snapshot
    assert memory is not None
    state = papers.query_states([query], "hybrid")[0].double().numpy()
    states = memory.states.double().numpy()
    t, c = memory.log_temperature.exp().item(), memory.null_level.item()
    weights = np.exp(np.append(states @ state / np.linalg.norm(state), c) / t)
    a = weights / weights.sum()
    judged = {int(row): n for n, row in enumerate(memory.rows.tolist())}
    relevance = np.zeros(len(judged))
    for q, d, grade in zip(
        memory.of_query.tolist(), memory.of_document.tolist(), memory.grades.tolist(), strict=True
    ):
        relevance[d] += a[q] * grade
    stored = memory.embeddings.double().numpy()
    expected: dict[int, float] = {}
    for position in snapshot.visible().tolist():
        embedding = snapshot.embeddings(np.array([position]))[0].astype(np.float64)
        mine = judged.get(int(snapshot.rows(np.array([position]))[0]))
        similar = stored @ embedding
        near = np.argsort(-similar, kind="stable")[:NEIGHBOURS]
        shares = np.exp(similar[near] / LENDING)
        null = np.exp(LENDING_LEVEL / LENDING)
        lent = memory.lending * float(relevance[near] @ shares / (null + shares.sum()))
        expected[position] = memory.strength.item() * (lent if mine is None else relevance[mine])
    return expected


@pytest.mark.parametrize(("candidates", "lending"), [(100, 1.0), (6, 1.0), (100, 0.5), (6, 0.0)])
def test_every_candidate_has_the_part_of_the_formula(
    papers: Collection, candidates: int, lending: float
) -> None:
    head = remembering(papers, lending=lending)
    papers.upsert([document(n) for n in range(40, 44)])  # fresh rows borrow too
    papers.delete(["d11", "d5"])  # a judged document that is gone still lends
    layer = SearchLayer(papers.snapshot, head, candidates=candidates)
    found = layer(papers.query_states(["bread apple"], "hybrid"), ["bread apple"])
    assert found.memory is not None
    expected = by_hand(papers, head, "bread apple")
    shown = [at for at in found.positions[0].tolist() if at >= 0]
    assert candidates == 6 or set(shown) == set(expected)
    assert found.memory[0, : len(shown)].tolist() == pytest.approx([expected[at] for at in shown], abs=1e-5)
    raw = found.dense[0, 0] + found.keyword[0, 0] + found.memory[0]
    assert torch.allclose(found.scores[0], raw, atol=1e-6)
    assert (found.scores[0].diff() <= 0).all()


def test_all_positions_are_as_candidates_are(papers: Collection) -> None:
    papers.upsert([document(41)])
    head = remembering(papers)
    assert head.memory is not None
    bound = SnapshotMemory(head.memory, papers.snapshot)
    recalled = head.memory(papers.query_states(["apple", "jam"], "hybrid"))
    every = np.tile(np.arange(papers.snapshot.positions), (2, 1))
    assert torch.allclose(bound.of_all(recalled), bound.scores(recalled, every), atol=1e-7)
    left = recalled._replace(relevance=-recalled.relevance.detach())  # seen and not wanted: grades below 0
    assert torch.allclose(bound.of_all(left), bound.scores(left, every), atol=1e-7)
    for at in range(papers.snapshot.positions):
        _, parts = bound.sources(recalled, 0, at)
        assert parts.sum() == pytest.approx(bound.of_all(recalled)[0, at].item(), abs=1e-6)


def test_one_query_is_lent_the_same_as_one_among_many(papers: Collection) -> None:
    """A few are answered by the borrowers of what they recall, many by one product."""
    head = remembering(papers)
    memory = head.memory
    assert memory is not None
    states = papers.query_states([f"{word} number3" for word in WORDS], "hybrid")
    assert len(states) > memory_module.SPREAD_BELOW
    with torch.no_grad():
        recalled = memory(states)
        together = SnapshotMemory(memory, papers.snapshot).of_all(recalled)
        for number in range(len(states)):
            bound, one = SnapshotMemory(memory, papers.snapshot), memory(states[number : number + 1])
            alone = bound.of_all(one)
            assert bound.scores(one, np.array([[3, -1]])).tolist() == [[alone[0, 3].item(), 0.0]]
            assert torch.allclose(alone[0], together[number], atol=1e-6)
            assert together[number].any()


def test_memory_proposes_what_no_leg_does(papers: Collection) -> None:
    """With one candidate a leg, a judged document of the same question is still found."""
    head = remembering(papers)
    layer = SearchLayer(papers.snapshot, head, candidates=1)
    found = layer(papers.query_states(["egg flour"], "hybrid"), ["egg flour"])
    rows = papers.store.rows_of(["d20"])
    assert papers.snapshot.positions_of(np.array([rows["d20"]]))[0] in found.positions[0]


@pytest.mark.parametrize("heads", [1, 3])
def test_explanations_add_up_and_name_past_queries(papers: Collection, heads: int) -> None:
    version = papers.add_model(remembering(papers, heads), {})
    hits = papers.search("bread apple", model=version, explain=True, limit=40).hits
    assert any(hit.explain and hit.explain.memory > 0.1 for hit in hits)
    for hit in hits:
        parts = hit.explain
        assert parts is not None
        heads_sum = sum(
            share * (dense + keyword)
            for share, dense, keyword in zip(parts.shares, parts.dense, parts.keyword, strict=True)
        )
        assert hit.score == pytest.approx(heads_sum + parts.memory + parts.mixing, abs=1e-4)
        assert sum(past.part for past in parts.past_queries) == pytest.approx(parts.memory, abs=1e-5)
    first = hits[0].explain
    assert first is not None
    assert first.past_queries[0].query == "apple bread"


def test_covered_mass_counts_the_memory(papers: Collection) -> None:
    version = papers.add_model(remembering(papers), {})
    few = papers.attend(["apple"], model=version, candidates=5)
    layer = SearchLayer(papers.snapshot, papers.head(version))
    whole = layer(papers.query_states(["apple"], "hybrid"), ["apple"])
    weights = dict(zip(whole.positions[0].tolist(), whole.weights[0].tolist(), strict=True))
    narrow = SearchLayer(papers.snapshot, papers.head(version), candidates=5)
    kept = narrow(papers.query_states(["apple"], "hybrid"), ["apple"]).positions[0]
    expected = sum(weights[at] for at in kept.tolist() if at >= 0)
    with torch.inference_mode():
        mass = covered_mass(few.output, narrow, ["apple"])
    assert mass[0].item() == pytest.approx(expected, abs=1e-5)


def test_covered_mass_of_a_large_collection_does_not_wait_for_lending(
    papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is estimated from a sample: what every document borrows would take minutes."""
    head = remembering(papers)
    layer = SearchLayer(papers.snapshot, head, candidates=5)
    with torch.inference_mode():
        found = layer.ranked(papers.query_states(["apple"], "hybrid"), ["apple"])
        exact = covered_mass(found, layer, ["apple"])[0].item()
    monkeypatch.setattr(coverage, "COVERAGE_DOCUMENTS", 10)
    monkeypatch.setattr(memory_module, "COVERAGE_DOCUMENTS", 10)
    monkeypatch.setattr(whole, "COVERAGE_DOCUMENTS", 10)
    monkeypatch.setattr(whole, "SAMPLE", 20)
    other = SearchLayer(papers.snapshot, remembering(papers), candidates=5)
    with torch.inference_mode():
        found = other.ranked(papers.query_states(["apple"], "hybrid"), ["apple"])
        estimated = covered_mass(found, other, ["apple"])[0].item()
    assert estimated == pytest.approx(exact, abs=0.15)


def test_many_rows_are_found_by_an_index_and_later_ones_beside_it(
    papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_memory, "INDEXED_FROM", 2)
    monkeypatch.setattr(models_memory, "LENDERS_FROM", 2)
    head = remembering(papers)
    assert head.memory is not None
    indexed = head.memory.with_setting(*head.memory.setting)
    models_memory.index_keys(head.remembering(indexed))
    assert indexed.index is not None
    assert indexed.lenders is not None
    more = memory_of_judged(papers, ["jam honey"], [{"d8": 2.0, "d33": 1.0}])
    states = papers.query_states(["bread apple", "jam"], "hybrid")
    every = papers.snapshot.visible()
    for one, other in ((head.memory, indexed), (head.memory.extended(more), indexed.extended(more))):
        plain = SnapshotMemory(one, papers.snapshot).of_all(one(states))
        by_index = SnapshotMemory(other, papers.snapshot).of_all(other(states))
        assert torch.allclose(plain[:, every], by_index[:, every], atol=1e-6)
    assert copy.deepcopy(indexed).index is indexed.index


@pytest.mark.parametrize("borrowers", [True, False])
def test_it_proposes_the_visible_documents_that_have_a_part(papers: Collection, borrowers: bool) -> None:
    """Most first; without borrowers those with grades alone."""
    memory = memory_over(papers)
    papers.upsert([document(41)])
    papers.delete(["d0"])
    bound = SnapshotMemory(memory, papers.snapshot)
    relevance = torch.tensor([[0.5, 0.0, 0.4, 0.3], [0.5, 0.4, 0.3, 0.0]])
    recalled = memory(papers.query_states(["apple", "jam"], "hybrid"))._replace(relevance=relevance)
    every, visible = bound.of_all(recalled).numpy(), papers.snapshot.visible()
    found = bound.best(recalled, 30, borrowers=borrowers)
    for row, parts in zip(found, every, strict=True):
        wanted = [at for at in visible if parts[at] > 0 and (borrowers or bound.is_judged(np.array([at]))[0])]
        wanted.sort(key=lambda at: -parts[at])
        shown = row[row != -1].tolist()
        assert [parts[at] for at in shown] == [parts[at] for at in wanted[: len(row)]]
        assert set(shown) <= set(visible.tolist())
        assert len(wanted) > 9 or (not borrowers and len(wanted) == 2)


def test_lent_grades_follow_the_precision_of_their_memory(papers: Collection) -> None:
    memory, states = memory_over(papers), papers.query_states(WORDS, "hybrid")
    bound = SnapshotMemory(memory, papers.snapshot)
    with torch.no_grad():
        single = bound.of_all(memory(states))
        double = bound.of_all(memory.double()(states.double()))
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(double.float(), single, atol=1e-5, rtol=1e-4)


def test_a_memory_has_no_part_in_keyword_search_and_kernels(papers: Collection) -> None:
    version = papers.add_model(remembering(papers), {})
    for options in (LayerOptions(mode="keyword"), LayerOptions(score="gaussian")):
        one, other = (papers.attend(["bread apple"], model=model, **options) for model in (version, "v0"))
        assert one.ids == other.ids
        assert torch.equal(one.output.scores, other.output.scores)


def test_it_is_stored_with_its_rows_and_answers_alike_when_opened_again(tmp_path: Path) -> None:
    with SearchEngine(tmp_path, encoder=lambda: HashingEncoder(16)) as engine:
        papers = engine.create("papers")
        papers.ingest([document(n) for n in range(40)])
        version = papers.add_model(remembering(papers), {})
        papers.promote(version)
        before = [(hit.id, hit.score) for hit in papers.search("bread apple").hits]
        record = papers.store.model(version).record
        assert record["memory"]["queries"] == 3
        assert record["format"] == 10
    with SearchEngine(tmp_path, encoder=lambda: HashingEncoder(16)) as engine:
        papers = engine.collection("papers")
        assert [(hit.id, hit.score) for hit in papers.search("bread apple").hits] == before
        assert engine.verify("papers").ok
    damaged = tmp_path / "collections" / "papers" / "models" / version / "memory.safetensors"
    if not damaged.exists():
        (damaged,) = tmp_path.rglob("memory.safetensors")
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 4
    damaged.write_bytes(content)
    with SearchEngine(tmp_path, encoder=lambda: HashingEncoder(16)) as engine:
        with pytest.raises(CorruptData):
            engine.collection("papers").search("bread apple")
        assert not engine.verify("papers").ok


def test_a_changed_document_loses_its_grades_and_borrows_from_its_former_self(papers: Collection) -> None:
    head = remembering(papers)
    assert head.memory is not None
    recalled = head.memory(papers.query_states(["egg flour"], "hybrid"))
    before = _part(papers, head, recalled, "d20")
    changed = document(20)
    papers.upsert([Document("d20", changed.text + " more", title=changed.title)])
    after = _part(papers, head, recalled, "d20")
    assert after > 0
    assert after != pytest.approx(before)


def _part(papers: Collection, head: Head, recalled: Recalled, id: str) -> float:
    assert head.memory is not None
    at = papers.snapshot.positions_of(np.array([papers.store.rows_of([id])[id]]))
    return SnapshotMemory(head.memory, papers.snapshot).scores(recalled, at[None])[0, 0].item()


def test_gradients_of_a_request_are_those_of_the_layer(papers: Collection) -> None:
    version = papers.add_model(remembering(papers), {})
    states = papers.query_states(["bread apple"], "hybrid").double().requires_grad_()
    head = remembering(papers).double()
    found = SearchLayer(papers.snapshot, head)(states, ["bread apple"])
    upstream = torch.randn(
        found.weights.shape, dtype=torch.double, generator=torch.Generator().manual_seed(1)
    )
    expected = torch.autograd.grad((found.weights * upstream).sum(), [states, head.memory.strength])  # pyright: ignore[reportOptionalMemberAccess]
    served = vjp(
        papers,
        GradientQuery(states=states.detach(), texts=["bread apple"], model=version, dtype="float64"),
        weights=upstream.tolist(),
    )
    assert np.allclose(served.states, expected[0].numpy(), atol=1e-9)
    assert served.head["memory.strength"] == pytest.approx(expected[1].item(), rel=1e-6)


def test_a_head_travels_without_its_memory_and_is_refused_as_a_child(papers: Collection) -> None:
    head = remembering(papers)
    again = head_from_tensors(head_tensors(head), papers.store.dimension)
    assert again.memory is None
    version = papers.add_model(head, {})
    with pytest.raises(Conflict, match="memory"):
        require_head_alone(version, papers.store.model(version).record)


def test_a_share_of_lending_is_a_format_that_earlier_releases_refuse(papers: Collection) -> None:
    version = papers.add_model(remembering(papers, lending=0.5), {})
    record = papers.store.model(version).record
    assert record["format"] == 16
    assert record["memory"]["lending"] == 0.5
    again = papers.head(version).memory
    assert again is not None
    assert again.lending == 0.5
    assert again.with_setting(*again.setting).lending == 0.5


def test_a_share_of_lending_is_from_0_to_1(papers: Collection) -> None:
    memory = memory_over(papers)
    parts = memory.parts()
    rows = [parts[name] for name in ("rows", "of_query", "of_document", "grades")]
    with pytest.raises(InvalidRequest, match=r"lending=1\.5; use a number from 0 to 1"):
        QueryMemory(memory.states.numpy(), memory.embeddings.numpy(), *rows, lending=1.5)


@pytest.mark.parametrize("cut", [4, 40, 400])
def test_a_file_cut_short_is_corrupt(papers: Collection, cut: int) -> None:
    with pytest.raises(CorruptData, match="memory"):
        memory_from_bytes(memory_bytes(memory_over(papers))[:cut])


def test_documents_unlike_any_judged_one_borrow_little(papers: Collection) -> None:
    """Else all would borrow all from a single judged document, and its query would find nothing by it."""
    snapshot = papers.snapshot
    judged = snapshot.visible()[:1]
    memory = QueryMemory(
        papers.query_states(["bread apple"], "hybrid").numpy(),
        snapshot.embeddings(judged[None])[0],
        snapshot.rows(judged),
        np.array([0]),
        np.array([0]),
        np.array([1.0]),
        strength=1.0,
    )
    recalled = memory(torch.as_tensor(memory.states))
    parts = SnapshotMemory(memory, snapshot).of_all(recalled)[0, snapshot.visible()]
    alike = torch.as_tensor(snapshot.embeddings(snapshot.visible()[None])[0]) @ memory.embeddings[0]
    assert parts[0] == parts.max() > 0.9
    assert (parts[alike < LENDING_LEVEL - 0.15] < 0.01).all()
    assert (alike < LENDING_LEVEL - 0.15).any()


@pytest.mark.usefixtures("unchecked")
def test_memories_of_the_same_rows_lend_alike() -> None:
    """Lent grades of one version serve another only where both lend the same."""
    rows, of_query = np.arange(3), np.zeros(3, np.int64)
    known = SnapshotMemory.__new__(SnapshotMemory)
    known.memory = SimpleNamespace(rows=rows, of_query=of_query, lending=0.5)  # type: ignore[assignment]

    def same(**more: Any) -> bool:
        parts: Any = SimpleNamespace(**{"rows": rows, "of_query": of_query, "lending": 0.5, **more})
        return known.same_rows(parts)

    assert same()
    assert not same(lending=1.0)
    assert not same(rows=rows.copy())
    assert not same(of_query=of_query.copy())


def test_further_documents_are_those_that_the_memory_recalls_too(papers: Collection) -> None:
    head = remembering(papers)
    states = papers.query_states(["ice jam"], "hybrid")
    options = {"mode": "dense", "candidates": 1, "depth": 3}
    with torch.inference_mode():
        layer = SearchLayer(papers.snapshot, head, **options)
        output = layer.ranked(states, ["ice jam"])
        plain = SearchLayer(papers.snapshot, Head(papers.store.dimension), **options).ranked(
            states, ["ice jam"]
        )
        assert output.recalled is not None
        recalled = set(layer.memory.best(output.recalled, 3)[0].tolist())
    assert recalled - set(plain.positions[0].tolist())
    assert recalled <= set(output.positions[0].tolist())


def test_neighbours_that_many_ask_for_are_computed_once() -> None:
    lending = memory_module._Lending.empty(3)._replace(lock=WatchedLock())
    at, computed = np.array([[0, 2]]), list[int]()

    def compute(missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        computed.extend(missing.tolist())
        return np.ones((len(missing), NEIGHBOURS), np.int32), np.ones((len(missing), NEIGHBOURS), np.float32)

    with waiting(lending.lock, lambda: lending.of(at, compute)):
        lending.computed[0] = True  # by the thread that holds the lock
    assert computed == [2]


def test_the_memory_of_a_layer_is_that_of_its_head_over_its_state(papers: Collection) -> None:
    head, before = remembering(papers), papers.snapshot
    layer = SearchLayer(before, head)
    first = layer.memory
    assert layer.memory is first
    assert (first.memory, first.snapshot) == (head.memory, before)
    head.memory = memory_over(papers, strength=0.3)
    assert layer.memory.memory is head.memory
    papers.upsert([document(41)])
    layer.snapshot = papers.snapshot
    assert layer.memory.snapshot is papers.snapshot
