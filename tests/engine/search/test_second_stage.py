"""A second stage ranks the best candidates again: by written-out MaxSim, inside one softmax."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.late_interaction import FEATURES, POWER, Matches
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, SearchEngine, System, make_run
from dsearch.engine.collection_layer import open_layer
from dsearch.engine.ranking.second_stage import CandidateEvidence, FirstStage, features_of
from dsearch.engine.search.queries import token_encoder_of
from dsearch.engine.snapshot import query_tokens
from dsearch.errors import InvalidCursor, InvalidRequest
from dsearch.types import Document, Query

QUERY = "bread with cheese"


@pytest.fixture
def staged(engine: SearchEngine, documents: list[Document]) -> Collection:
    collection = engine.create("staged")
    collection.ingest(documents, second_stage=True)
    collection.upsert([Document(id="fresh", title="bread", text="cheese")])
    return collection


def written_out(collection: Collection, query: str, id: str) -> float:
    """γ M of one document, token by token, from what is stored."""
    snapshot = collection.snapshot
    assert snapshot.tokens is not None
    codec = snapshot.tokens.codec
    (of_query,) = collection.encoder.encode_tokens([query], "query")[1]  # type: ignore[attr-defined]
    row = collection.store.rows_of([id])[id]
    tokens = snapshot.tokens.document(int(snapshot.positions_of(np.array([row]))[0]))
    assert tokens is not None
    stored = codec.numbers(tokens.codes) * codec.steps
    total, weight = 0.0, 0.0
    for state, (start, end) in zip(of_query.states, of_query.spans, strict=True):
        idf = snapshot.keyword.idf(query[start:end])
        projected = codec.projected(state[None])[0]
        best = max([0.0, *(float(projected @ token) for token in stored)])
        total, weight = total + idf * best**POWER, weight + idf
    return 0.75 * total / weight


def test_the_term_is_maxsim_written_out(staged: Collection) -> None:
    result = staged.search(QUERY, stages=2, explain=True, limit=20)
    assert {hit.id for hit in result.hits} >= {"fresh", "d1", "d2"}
    for hit in result.hits:
        assert hit.explain is not None
        assert hit.explain.second_stage == pytest.approx(written_out(staged, QUERY, hit.id), abs=1e-5)


def test_parts_sum_to_the_score_and_weights_to_one(staged: Collection) -> None:
    result = staged.search(QUERY, stages=2, explain=True, limit=20)
    assert sum(hit.weight for hit in result.hits) == pytest.approx(1.0, abs=1e-5)
    logits = []
    for hit in result.hits:
        parts = hit.explain
        assert parts is not None
        assert parts.dense[0] + parts.keyword[0] + parts.second_stage == pytest.approx(hit.score, abs=1e-5)
        logits.append(hit.score / 0.05)
    expected = torch.tensor(logits, dtype=torch.float64).softmax(0)
    assert [hit.weight for hit in result.hits] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("arranged", [{"collapse": True}, {"diversity": 0.9}, {"sort": "-place"}])
def test_parts_stay_with_their_documents_in_another_order(
    staged: Collection, arranged: dict[str, Any]
) -> None:
    copies = [Document(f"copy{n}", "bread with cheese", metadata={"place": n}) for n in range(3)]
    staged.upsert([*copies, Document("other", "cheese on bread", metadata={"place": 9})])
    plain = staged.search(QUERY, stages=2, explain=True, limit=60).hits
    parts = {hit.id: hit.explain.second_stage for hit in plain if hit.explain}
    hits = staged.search(QUERY, stages=2, explain=True, limit=60, **arranged).hits
    assert [hit.id for hit in hits] != [hit.id for hit in plain]
    for hit in hits:
        assert hit.explain is not None
        assert hit.explain.second_stage == pytest.approx(parts[hit.id], abs=1e-6), hit.id


@pytest.mark.parametrize("reranked", [1, 3, 5])
def test_nothing_outside_ranks_above_what_was_looked_at(staged: Collection, reranked: int) -> None:
    first = [hit.id for hit in staged.search(QUERY, limit=20).hits]
    second = [hit.id for hit in staged.search(QUERY, limit=20, stages=2, rerank_candidates=reranked).hits]
    assert set(second[:reranked]) == set(first[:reranked])
    assert second[reranked:] == first[reranked:]


def test_pages_go_on_in_the_order_of_the_second_stage(staged: Collection) -> None:
    whole = [hit.id for hit in staged.search(QUERY, limit=12, stages=2, rerank_candidates=4).hits]
    page = staged.search(QUERY, limit=3, stages=2, rerank_candidates=4)
    found = [hit.id for hit in page.hits]
    while page.next_cursor is not None and len(found) < 12:
        page = staged.search(QUERY, limit=3, stages=2, rerank_candidates=4, cursor=page.next_cursor)
        found += [hit.id for hit in page.hits]
    assert found == whole
    cursor = staged.search(QUERY, limit=3, stages=2, rerank_candidates=4).next_cursor
    with pytest.raises(InvalidCursor, match="another search"):
        staged.search(QUERY, limit=3, stages=2, rerank_candidates=5, cursor=cursor)


def test_further_documents_follow_those_that_were_looked_at(staged: Collection) -> None:
    staged.upsert([Document(id=f"further{i}", text=f"bread and cheese number{i}") for i in range(150)])
    page = staged.search(QUERY, stages=2, limit=100).hits
    more = staged.search(QUERY, stages=2, limit=160).hits
    assert len(page) == 100 < len(more)
    assert [hit.id for hit in more[:100]] == [hit.id for hit in page]
    assert [hit.weight for hit in more[:100]] == pytest.approx([hit.weight for hit in page], abs=1e-6)


def test_what_lies_beyond_the_candidates_is_not_looked_at(staged: Collection) -> None:
    """Though there is room for more: it is listed behind, as without a second stage."""
    states, tokens = (
        staged.query_states([QUERY], "hybrid"),
        staged.query_token_cache.of(staged.encoder, [QUERY]),
    )
    found = []
    for depth in (None, 12):
        options: Any = {"stages": 2, "candidates": 3, "depth": depth, "rerank_candidates": 100}
        layer = staged.layer_over(staged.snapshot, staged.head("v0"), options)
        found.append(layer.ranked(states, [QUERY], [query_tokens(tokens[0], QUERY, layer.snapshot)]))
    plain, deep = found
    assert deep.is_extra is not None
    assert deep.second is not None
    assert plain.second is not None
    is_extra = torch.as_tensor(deep.is_extra[0])
    assert is_extra.sum() > 3
    torch.testing.assert_close(deep.second[0][~is_extra], plain.second[0])
    # They have the least term, less what keeps them below all that were looked at.
    first, lowest = deep.first_raw[0, 0][is_extra], (plain.first_raw[0, 0] + plain.second[0]).min()
    expected = torch.minimum(first + plain.second.min(), lowest)
    torch.testing.assert_close(first + deep.second[0][is_extra], expected, atol=1e-5, rtol=1e-5)


def test_served_as_trained(staged: Collection) -> None:
    """The ids and weights of an answer are those of the layer that gradients flow through."""
    layer, _ = staged.layer_and_stamp(stages=2)
    states = staged.query_states([QUERY], "hybrid")
    (of_query,) = staged.query_token_cache.of(staged.encoder, [QUERY])
    found = layer(states, [QUERY], tokens=[query_tokens(of_query, QUERY, layer.snapshot)])
    answer = staged.search(QUERY, stages=2, limit=20)
    assert staged.ids_at(layer.snapshot, found.positions)[0][: len(answer.hits)] == [
        hit.id for hit in answer.hits
    ]
    weights = found.weights[0, : len(answer.hits)].tolist()
    assert weights == pytest.approx([hit.weight for hit in answer.hits], abs=1e-6)


def test_an_evaluation_ranks_as_searches_do(staged: Collection) -> None:
    """A version that learned a second stage is scored with it."""
    head = staged.head("v0").reranking(SecondStage(strength=3.0))
    staged.promote(staged.add_model(head, {}, parent="v0"))
    (run,) = make_run(staged, [Query("q", QUERY)], System("hybrid", staged.live_model)).values()
    served = staged.search(QUERY, limit=20).hits
    assert [id for id, _ in run[:20]] == [hit.id for hit in served]
    assert [score for _, score in run[:20]] == pytest.approx([hit.score for hit in served], abs=1e-5)


def test_likeness_has_no_second_stage(staged: Collection) -> None:
    """Examples have no tokens of a query."""
    head = staged.head("v0").reranking(SecondStage(strength=3.0))
    staged.promote(staged.add_model(head, {}, parent="v0"))
    for stages in (None, 1):
        hits = staged.search(QUERY, stages=stages, explain=True, limit=5).hits
        assert any(hit.explain.second_stage for hit in hits if hit.explain) == (stages is None)
    for hit in staged.similar(["d1"], query="honey", explain=True, limit=5).hits:
        assert hit.explain is not None
        assert hit.explain.second_stage == 0


def test_tokens_of_a_query_are_of_the_encoder_that_the_stage_was_fitted_to(staged: Collection) -> None:
    """A version with an encoder of its own has tokens of it if it has a second stage of its own, too."""
    change = EncoderChange(EncoderTraining("all"), {"weight": 2 * torch.eye(32)})
    fitted = staged.head("v0").reranking(SecondStage(strength=3.0))
    with_stage, without = (
        staged.add_model(head, {"scope": "query"}, encoder=change) for head in (fitted, Head(32))
    )
    own = token_encoder_of(staged, with_stage).identity
    assert own == staged.encoder_identity_of(with_stage) != staged.encoder.identity
    assert token_encoder_of(staged, without) is staged.encoder
    assert token_encoder_of(staged, "v0") is staged.encoder


def test_gradients_reach_strength_and_features(staged: Collection) -> None:
    head = copy.deepcopy(staged.head("v0"))
    head.second_stage = SecondStage()
    layer = staged.layer_over(staged.snapshot, head, {"stages": 2})
    (of_query,) = staged.query_token_cache.of(staged.encoder, [QUERY])
    states = staged.query_states([QUERY], "hybrid")
    found = layer(states, [QUERY], tokens=[query_tokens(of_query, QUERY, layer.snapshot)])
    found.weights[0, 0].log().neg().backward()
    for parameter in head.second_stage.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0
    assert len(head.second_stage.feature_weights) == len(FEATURES)


def test_a_document_without_known_tokens_is_ranked_neutrally(staged: Collection) -> None:
    staged.upsert([Document(id="lost", title="bread", text="with cheese")])
    staged.tokens.spool.forget(staged.tokens.spool.rows().tolist())
    staged.refresh()
    hits = staged.search(QUERY, stages=2, explain=True, limit=20).hits
    parts = {hit.id: hit.explain.second_stage for hit in hits if hit.explain is not None}
    others = [part for id, part in parts.items() if id not in ("lost", "fresh")]
    assert parts["lost"] == parts["fresh"] == pytest.approx(np.mean(others), abs=1e-5)
    shown = staged.search(QUERY, highlight=True, highlight_by="meaning", limit=20).hits
    assert {hit.id for hit in shown if not hit.highlights} >= {"lost", "fresh"}


@pytest.mark.parametrize("query", ["the", "!", "xyzzy", "bread " * 200])
def test_odd_queries_are_answered(staged: Collection, query: str) -> None:
    result = staged.search(query, stages=2)
    assert result.hits
    assert all(np.isfinite(hit.score) for hit in result.hits)


def test_a_query_is_encoded_once(staged: Collection, encoder: HashingEncoder) -> None:
    calls = []
    encode_tokens = encoder.encode_tokens

    def counted(texts: list[str], role: str = "document") -> Any:
        calls.append(texts)
        return encode_tokens(texts, role)

    encoder.encode_tokens = counted  # type: ignore[method-assign]
    staged.search("oat and mango", stages=2)
    assert calls == [["oat and mango"]]


@pytest.mark.parametrize("options", [{"mode": "keyword"}, {"stages": 3}])
def test_what_does_not_go_together_is_refused(staged: Collection, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="stages"):
        staged.search(QUERY, **{"stages": 2, **options})  # type: ignore[arg-type]


def test_without_tokens_the_way_to_get_them_is_named(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="--second-stage"):
        collection.search(QUERY, stages=2)
    with pytest.raises(InvalidRequest, match="stages=2"):
        collection.similar(["d1"], stages=2)


def test_highlights_of_meaning_mark_words_of_the_fields(staged: Collection) -> None:
    hits = staged.search(QUERY, highlight=True, highlight_by="meaning", limit=20).hits
    marked = {hit.id: hit.highlights for hit in hits}
    assert marked["fresh"] is not None
    shown = [
        (piece.field, piece.by, [piece.text[a - piece.start : b - piece.start] for a, b in piece.spans])
        for piece in marked["fresh"]
    ]
    assert shown == [("title", "meaning", ["bread"]), ("text", "meaning", ["cheese"])]


def test_highlights_of_meaning_need_tokens(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="--second-stage"):
        collection.search(QUERY, highlight=True, highlight_by="meaning")


def test_an_opened_layer_has_a_second_stage_that_learns(staged: Collection, engine: SearchEngine) -> None:
    layer = open_layer(engine, "staged", stages=2)
    tokens = layer.query_tokens([QUERY])
    output = layer(layer.query_states([QUERY]), [QUERY], tokens=tokens)
    hits = staged.search(QUERY, stages=2, limit=20).hits
    assert layer.ids(output.positions)[0][: len(hits)] == [hit.id for hit in hits]
    output.weights[0, 0].log().neg().backward()
    learned = {name for name, of in layer.named_parameters() if of.grad is not None and of.grad.any()}
    assert {f"head.second_stage.{name}" for name in ("strength", "feature_weights")} <= learned


def test_gradients_of_matches_reach_an_encoder_that_learns(staged: Collection, engine: SearchEngine) -> None:
    """By the tokens of the query alone; what is ranked is what the frozen encoder ranks."""
    layer = open_layer(engine, "staged", stages=2, encoder_training="all")
    assert layer.encoder is not None
    states = layer.query_states([QUERY]).detach()
    output = layer(states, [QUERY], tokens=layer.query_tokens([QUERY]))
    frozen = layer(states, [QUERY], tokens=open_layer(engine, "staged").query_tokens([QUERY]))
    assert output.second is not None
    torch.testing.assert_close(output.second, frozen.second)
    output.second[0, 0].backward()  # type: ignore[no-untyped-call]
    (gradient,) = [of.grad for of in layer.encoder.learning()]
    assert gradient is not None
    assert gradient.abs().max() > 1e-4


def test_features_of_candidates_are_written_out() -> None:
    """One by one, of candidates in no order; a single one has no neighbour."""
    generator, count = np.random.default_rng(5), 14
    embeddings = generator.normal(size=(count, 6))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores, dense, keyword, total, lead = generator.random((5, count))
    dense[3] = dense[8]  # equals share the better place
    lengths = generator.integers(0, 50, count)
    lengths[0] = 0

    def features(at: np.ndarray) -> dict[str, np.ndarray]:
        """Of the candidates at some columns; the dense score is the mean of two heads."""
        heads = torch.as_tensor(np.stack([dense - 0.1, dense + 0.1]))[None]
        of_all = torch.as_tensor(scores)[None]
        first = FirstStage(np.arange(count)[None], heads, of_all, heads, torch.as_tensor(keyword)[None])
        matches = Matches(*(torch.as_tensor(of[at]) for of in (scores, total, lead)))
        evidence = CandidateEvidence(matches, torch.as_tensor(lengths[at]), torch.as_tensor(embeddings[at]))
        return dict(zip(FEATURES, features_of(first, 0, at, evidence).T.numpy(), strict=True))

    def unit(vector: np.ndarray) -> np.ndarray:
        return vector / np.linalg.norm(vector)

    at = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13])  # one is not reranked
    found, own = features(at), scores[at]
    near = embeddings[at] @ embeddings[at].T
    shares = np.exp(own / 0.05) / np.exp(own / 0.05).sum()
    standard = (own - own.mean()) / own.std(ddof=1)
    nearness = np.exp(near / 0.1) * (1 - np.eye(len(at)))
    best = at[np.argsort(-own)[:10]]
    expected = {
        "dense": dense[at],
        "keyword": keyword[at],
        "sum": total[at],
        "lead": lead[at],
        "length": np.log(np.maximum(lengths[at], 1)) / 4,
        "feedback": embeddings[at] @ unit(embeddings[best].mean(0)),
        "dense_place": [1 / (2 + (dense[at] > one).sum()) for one in dense[at]],
        "keyword_place": [1 / (2 + (keyword[at] > one).sum()) for one in keyword[at]],
        "leaders": embeddings[at] @ unit(shares @ embeddings[at]),
        "neighbours": nearness @ standard / nearness.sum(1),
    }
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[name], numbers, atol=1e-5, err_msg=name)
    assert features(np.array([2]))["neighbours"] == 0.0
