"""Long documents: every one is scored by its best passage, wherever scores are computed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.engine.long_documents import (
    OPTIONS,
    QUERIES,
    brute,
    reference,
    some,
    states_of,
    trained,
    words,
)

from dsearch.attention.retrieval.head import Head
from dsearch.engine import GradientQuery, PassageOptions, SearchLayer, attention_parts, vjp
from dsearch.engine.options import KeyOptions
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.engine.snapshot import NONE, SnapshotPassages, best_of_documents
from dsearch.index import PassageTable
from dsearch.types import Document

# --- what is found


def test_what_stands_at_the_end_of_a_long_document_is_found(engine):
    target = Document("target", words(100, 1).replace("nut", "oat") + " unique needle words")
    others = [Document(f"o{n}", words(12, n + 50) + (" needle" if n == 3 else "")) for n in range(20)]
    with_passages = engine.create("with", passages=OPTIONS)
    without = engine.create("without", passages=PassageOptions(none=True))
    for collection in (with_passages, without):
        collection.ingest([target, *others])
    query = "unique needle words"
    (first, *_) = with_passages.search(query, mode="dense").hits
    assert first.id == "target"
    assert first.passage.text.endswith("unique needle words")
    assert first.passage.text == target.text[first.passage.start : first.passage.end]
    assert first.passage.ordinal > 3
    found = without.search(query, mode="dense", limit=21).hits
    before = next(hit for hit in found if hit.id == "target")
    assert before.score < first.score - 0.2
    assert before.passage is None


def test_only_long_documents_have_a_passage(long):
    hits = long.search("apple number7", limit=50, mode="dense").hits
    cut = {
        id for id, row in long.store.rows_of([hit.id for hit in hits]).items() if long.store.passages([row])
    }
    assert {hit.id for hit in hits if hit.passage is not None} == cut
    assert {"new", "d0", "d3"} <= cut
    for hit in hits:
        if hit.passage is not None:
            assert hit.passage.text == hit.text[hit.passage.start : hit.passage.end]


def test_the_passage_that_adds_most_to_the_weight_is_shown(long):
    """Of the heads by their shares of the mixture, too: a head of next to no share may like another more."""
    head = trained(long.store.dimension, 3)
    with torch.no_grad():
        head.mixture_logits.copy_(torch.tensor([0.0, 2.0, -2.0]))
    version = long.add_model(head, {})
    layer = SearchLayer(long.snapshot, head, mode="dense")
    found, others = layer(states_of(long)), 0
    for number, query in enumerate(QUERIES):
        hits = {hit.id: hit for hit in long.search(query, mode="dense", model=version, limit=50).hits}
        shares = found.head_weights[number].detach().numpy()
        added = shares * head.mixture.detach().numpy()[:, None]
        for column, id in enumerate(long.ids_at(long.snapshot, found.positions)[number]):
            if id and hits[id].passage is not None:
                by_head = [long.snapshot.passages.span_of(int(key)) for key in found.keys[number, :, column]]
                shown = hits[id].passage
                assert (shown.ordinal, shown.start, shown.end) == by_head[added[:, column].argmax()]
                others += by_head[shares[:, column].argmax()] != by_head[added[:, column].argmax()]
    assert others > 0


def test_words_alone_take_no_passage(long):
    assert all(hit.passage is None for hit in long.search("apple number7", mode="keyword").hits)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_attention_is_that_of_plain_tensors(long, heads, mode):
    head, states = trained(long.store.dimension, heads), states_of(long)
    texts = QUERIES if mode == "hybrid" else None
    weights, context, _ = reference(long, head, states, texts)
    found = SearchLayer(long.snapshot, head, mode=mode)(states, texts)
    spread = torch.zeros_like(weights).scatter(
        1, torch.as_tensor(found.positions).clamp_min(0), found.weights
    )
    torch.testing.assert_close(spread, weights)
    torch.testing.assert_close(found.context, context)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("projected", [False, True])
def test_candidates_are_the_documents_of_best_passages(engine, heads, projected):
    """One document has the nearest keys by far; k documents are found all the same."""
    collection = engine.create("greedy", passages=OPTIONS)
    greedy = Document("greedy", " ".join(["apple number7"] * 200))
    collection.ingest([greedy, *some()])
    head = trained(collection.store.dimension, heads)
    if projected:
        collection.promote(collection.add_model(head, {}))
        collection.refresh()
        assert collection.snapshot.unfold is not None
    collection.upsert([Document("greedy2", " ".join(["apple number7 honey"] * 100))])
    states = states_of(collection)
    for k in (1, 3, 7):
        found = SearchLayer(collection.snapshot, head, mode="dense", candidates=k)(states)
        dense, _, _ = brute(collection, head, states, None)
        for query in range(len(states)):
            expected = {int(at) for scores in dense[query] for at in scores.topk(k).indices}
            assert expected <= set(found.positions[query].tolist())


def test_fresh_documents_are_proposed_by_their_best_passages(engine):
    collection = engine.create("fresh", passages=OPTIONS)
    collection.upsert(some(count=40))
    assert len(collection.snapshot.fresh) == 40
    head, states = Head(collection.store.dimension), states_of(collection)
    dense, _, _ = brute(collection, head, states, None)
    found = SearchLayer(collection.snapshot, head, mode="dense", candidates=4)(states).positions
    assert [set(line) for line in found.tolist()] == [
        set(line) for line in dense[:, 0].topk(4).indices.tolist()
    ]


@pytest.mark.parametrize("kind", ["HNSW", "IVF", "SQ8"])
def test_approximate_kinds_give_as_many_documents_as_asked(engine, kind):
    collection = engine.create("kinds", passages=OPTIONS, keys=KeyOptions(kind=kind))
    collection.ingest([Document("greedy", " ".join(["apple number7"] * 200)), *some(count=60)])
    found = SearchLayer(collection.snapshot, Head(collection.store.dimension), mode="dense", candidates=9)
    positions = found(states_of(collection)).positions
    assert positions.shape == (len(QUERIES), 9)
    assert all(len(set(line)) == 9 and -1 not in line for line in positions.tolist())


def test_hops_refine_by_the_passages_that_were_taken(long):
    head, states = trained(long.store.dimension, 2), states_of(long)
    with torch.no_grad():
        head.hop_strength.fill_(0.7)
    layer = SearchLayer(long.snapshot, head, mode="dense", hops=2)
    once = SearchLayer(long.snapshot, head, mode="dense", hops=1)(states)
    _, _, taken = brute(long, head, states, None)
    first = torch.as_tensor(once.positions[:, :10])
    rows = torch.arange(len(states))[:, None]
    weights = once.head_weights[..., :10]
    weights = weights / weights.sum(-1, keepdim=True)
    pooled = torch.einsum("bhc,bchd->bhd", weights, head.keys(taken[rows, :, first]))
    queries = head.queries(states)
    unit = torch.nn.functional.normalize
    turned = unit(unit(queries, dim=-1) + 0.7 * unit(pooled, dim=-1), dim=-1) * queries.norm(
        dim=-1, keepdim=True
    )
    torch.testing.assert_close(layer(states).folded, head.fold(turned), atol=1e-5, rtol=1e-4)


# --- gradients


def test_gradients_are_those_of_the_best_passage(long):
    head = trained(long.store.dimension, 2).double()
    states = states_of(long).double().requires_grad_()
    weights, context, _ = reference(long, head, states, QUERIES)
    probe = torch.randn(context.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameters = [states, *head.parameters()]
    expected = torch.autograd.grad(
        (context * probe).sum() + weights[:, 3].sum(), parameters, allow_unused=True
    )
    found = SearchLayer(long.snapshot, head)(states, QUERIES)
    third = found.weights[torch.as_tensor(found.positions == 3)].sum()
    got = torch.autograd.grad((found.context * probe).sum() + third, parameters, allow_unused=True)
    for one, other in zip(expected, got, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one)


def test_embeddings_in_the_graph_are_all_there_is_of_a_document(long):
    head, states = Head(long.store.dimension), states_of(long)
    layer = SearchLayer(long.snapshot, head, mode="dense")
    found = layer(states, embed=lambda positions: torch.as_tensor(long.snapshot.embeddings(positions)))
    assert found.keys is None
    first = torch.as_tensor(long.snapshot.embeddings(found.positions))
    torch.testing.assert_close(found.dense[:, 0], torch.einsum("bd,bcd->bc", states, first))


# --- what is claimed about a search


@pytest.mark.parametrize("gradients", [False, True], ids=["at once", "block by block"])
@pytest.mark.parametrize("heads", [1, 3])
def test_covered_mass_is_the_share_of_the_softmax_over_documents(long, heads, gradients):
    head, states = trained(long.store.dimension, heads), states_of(long)
    layer = SearchLayer(long.snapshot, head, candidates=4)
    with torch.set_grad_enabled(gradients):
        found = layer(states, QUERIES)
        covered = covered_mass(found, layer, QUERIES)
        _, _, logits = reference(long, head, states, QUERIES)
    everything = logits.softmax(-1)
    at = torch.as_tensor(found.positions)
    held = everything.gather(2, at.clamp_min(0)[:, None].expand(-1, heads, -1))
    held = held.masked_fill((at == -1)[:, None], 0.0).sum(-1)
    torch.testing.assert_close(covered, (held * head.mixture).sum(-1), atol=1e-5, rtol=1e-4)
    assert covered.min() < 0.999


def test_a_score_takes_the_passage_that_is_best_by_itself(long):
    head, states = trained(long.store.dimension), states_of(long)
    found = SearchLayer(long.snapshot, head, mode="dense", score="gaussian", width=0.5)(states)
    keys = head.keys(torch.as_tensor(long.snapshot.key_embeddings(found.keys[:, 0])))
    away = (head.queries(states) - keys).square().sum(-1)
    mask = torch.as_tensor(found.positions >= 0)
    torch.testing.assert_close(found.dense[:, 0][mask], (-away / (2 * 0.25))[mask], atol=1e-4, rtol=1e-4)
    for position in long.snapshot.passages.long.tolist():
        _, further = long.snapshot.passages.beside(np.array([[position]]))
        every = np.concatenate([[position], further[0] + long.snapshot.positions])
        other = head.keys(torch.as_tensor(long.snapshot.key_embeddings(every)))
        least = (head.queries(states) - other).square().sum(-1).min(-1).values
        at = torch.as_tensor(found.positions == position)
        if at.any():
            torch.testing.assert_close(away[at], least[at.any(1)], atol=1e-5, rtol=1e-4)


# --- indexing
# --- over a wire


def parts_of(collection, head, states, include, **options):
    version = collection.add_model(head, {})
    question = GradientQuery(states=states, texts=QUERIES, model=version, dtype="float64", options=options)
    return question, attention_parts(collection, question, include=include)


@pytest.mark.parametrize("score", ["dot", "gaussian"])
@pytest.mark.parametrize("heads", [1, 3])
def test_slopes_are_those_of_the_passages_that_were_taken(long, heads, score):
    """What the other side computes from them is what `vjp` computes here."""
    head, states = trained(long.store.dimension, heads), states_of(long).double()
    options = {"score": score, "hops": 1, **({"width": 0.7} if score == "gaussian" else {})}
    question, parts = parts_of(long, head, states, ("slopes", "parts"), **options)
    raw = torch.as_tensor(parts.dense + parts.keyword).requires_grad_()
    mask = torch.as_tensor([[n < len(ids) for n in range(raw.shape[2])] for ids in parts.ids])
    logits = (raw / parts.temperature).masked_fill(~mask[:, None], -torch.inf)
    weights = (logits.softmax(-1) * torch.as_tensor(parts.mixture)[:, None]).sum(1)
    torch.testing.assert_close(weights, torch.as_tensor(parts.weights))
    (of_raw,) = torch.autograd.grad(weights[:, 2].sum(), [raw])
    slopes = torch.as_tensor(parts.slopes)
    there = torch.einsum("bhc,bhcd->bd", of_raw, slopes).numpy()
    upstream = [[float(n == 2) for n in range(len(ids))] for ids in parts.ids]
    here = vjp(long, dataclasses.replace(question, stamp=parts.stamp), weights=upstream).states
    np.testing.assert_allclose(there, here, atol=1e-9)


def test_keys_and_values_are_those_of_the_passages_that_were_taken(long):
    head, states = trained(long.store.dimension), states_of(long).double()
    _, parts = parts_of(long, head, states, ("keys", "values", "parts"), hops=1)
    dense = torch.einsum(
        "bd,bcd->bc", head.queries(states.float())[:, 0].double(), torch.as_tensor(parts.keys)
    )
    mask = torch.as_tensor([[n < len(ids) for n in range(dense.shape[1])] for ids in parts.ids])
    torch.testing.assert_close(dense[mask], torch.as_tensor(parts.dense)[:, 0][mask], atol=1e-5, rtol=1e-5)
    context = np.einsum("bc,bcd->bd", parts.weights, parts.values)
    np.testing.assert_allclose(context, parts.context, atol=1e-9)


def test_heads_that_took_different_passages_have_keys_and_values_of_their_own(long):
    head, states = trained(long.store.dimension, 3), states_of(long).double()
    _, parts = parts_of(long, head, states, ("keys", "values", "parts"), hops=1)
    keys, values = parts.keys, parts.values
    assert keys.shape == values.shape == (*parts.dense.shape, long.store.dimension)
    assert (keys != keys[:, :1]).any()
    shares = parts.head_weights * parts.mixture[:, None]
    context = np.einsum("bhc,bhcd->bd", shares, values)
    np.testing.assert_allclose(context, parts.context, atol=1e-9)


def test_the_best_passage_counts_and_scores_that_were_given_stay() -> None:
    scores = np.array([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], np.float32)
    further = np.array([[0.25, 3.0, 1.0], [-1.0, -2.0, 4.0]], np.float32)
    best = best_of_documents(scores, further, np.array([0, 0, 2]))
    assert best.tolist() == [[3.0, -1.0, 2.0], [0.0, 0.0, 4.0]]
    assert scores.tolist() == [[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]]
    assert best_of_documents(scores, further[:, :0], np.zeros(0, np.int64)).tolist() == scores.tolist()


# --- the table of them


def passages_of(counts: dict[int, int], positions: int) -> SnapshotPassages:
    """Further passages of documents by position, in two tables; passage n stands at [10 n, 10 n + 5)."""
    owners = np.array([at for at, count in counts.items() for _ in range(count)], np.int64)
    spans = np.stack([10 * np.arange(len(owners)), 10 * np.arange(len(owners)) + 5], 1)
    tables = []
    for part in (owners < positions // 2, owners >= positions // 2):
        long = np.unique(owners[part])
        first = np.stack([1000 + long, 1001 + long], 1)
        tables.append(PassageTable(owners[part], spans[part], first, np.zeros((part.sum(), 2), np.float32)))
    return SnapshotPassages(positions, *tables)


def test_a_key_is_a_passage_with_its_number_and_place() -> None:
    passages = passages_of({1: 2, 3: 1, 7: 3}, positions=8)
    assert [passages.span_of(key) for key in (0, 1, 3, 7)] == [
        None,
        (0, 1001, 1002),
        (0, 1003, 1004),
        (0, 1007, 1008),
    ]
    ordinals = [1, 2, 1, 1, 2, 3]
    assert [passages.span_of(8 + number) for number in range(6)] == [
        (ordinal, 10 * number, 10 * number + 5) for number, ordinal in enumerate(ordinals)
    ]


@pytest.mark.parametrize(
    ("size", "blocks"),
    [
        (1, [[1], [3], [7], [9]]),
        (3, [[1, 3], [7], [9]]),
        (4, [[1, 3], [7, 9]]),
        (6, [[1, 3, 7], [9]]),
        (7, [[1, 3, 7, 9]]),
    ],
)
def test_blocks_have_whole_documents_up_to_their_size(size: int, blocks: list[list[int]]) -> None:
    """Of 2, 1, 3 and 1 passages; a document with more than a block holds is one by itself."""
    passages = passages_of({1: 2, 3: 1, 7: 3, 9: 1}, positions=10)
    made = [(long.tolist(), further) for long, further in passages.blocks(size)]
    assert [long for long, _ in made] == blocks
    assert np.concatenate([further for _, further in made]).tolist() == [*range(7)]
    for long, further in made:
        assert set(passages.owners[further].tolist()) == set(long)


def test_candidates_have_their_further_passages_beside_them() -> None:
    passages = passages_of({1: 2, 3: 1}, positions=5)
    assert passages.beside(np.array([[0, 2, NONE]])) is None
    beside = passages.beside(np.array([[3, 0, 1], [NONE, 3, 2]]))
    assert beside is not None
    columns, further = beside
    assert columns.tolist() == [[0, 2, 2], [1, 3, 3]]
    assert further.tolist() == [[2, 0, 1], [2, NONE, NONE]]
