"""A model's own k1 and b: searching with it is searching an index that was built with them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, SearchLayer, head_bytes
from dsearch.engine.models.tensors import head_from_bytes
from dsearch.errors import InvalidRequest, UnsupportedFormat
from dsearch.index import KeywordIndex
from dsearch.types import Document

QUERY = "bread cheese cheese"


def weighed_head(k1: float = 0.6, b: float = 0.3) -> Head:
    head = Head(32).eval()
    head.weigh_keywords(k1, b)
    return head


@pytest.fixture
def uneven(engine: SearchEngine) -> Collection:
    """Repeated words in long and short documents: k1 and b decide; the last came after the build."""
    made = engine.create("uneven")
    long = "bread " * 6 + "flour egg milk butter sugar salt water yeast oil honey " * 4
    texts = [long, "bread", "bread bread cheese", "cheese", "cheese oat nut", "apple pear lemon"]
    made.ingest([Document(f"d{i}", text) for i, text in enumerate(texts)])
    made.upsert([Document("d6", "bread cheese " + "grape " * 12)])
    return made


def test_search_is_that_of_an_index_built_with_these_numbers(uneven: Collection) -> None:
    version = uneven.add_model(weighed_head(), {})
    rows = uneven.snapshot.rows(uneven.snapshot.visible())
    texts = {document.id: document.content for document in uneven.store.documents(rows)}
    own = uneven.search(QUERY, mode="keyword", limit=7)
    found = uneven.search(QUERY, mode="keyword", limit=7, model=version)
    built = [texts[f"d{i}"] for i in range(6)]  # statistics are those of the generation
    index = KeywordIndex.build(built, tokenizer=uneven.snapshot.keyword.tokenizer, k1=0.6, b=0.3)
    expected = dict(zip([f"d{i}" for i in range(6)], index.scores([QUERY])[0].tolist(), strict=True))
    expected["d6"] = float(index.scores_of_texts(QUERY, [texts["d6"]])[0])
    for hit in found.hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-6)
    assert [hit.score for hit in found.hits] != [hit.score for hit in own.hits]


def test_explained_parts_sum_to_the_score(uneven: Collection) -> None:
    version = uneven.add_model(weighed_head(), {})
    for hit in uneven.search(QUERY, model=version, explain=True).hits:
        assert hit.explain is not None
        keyword = sum(parts[0] for parts in hit.explain.terms.values())
        assert keyword == pytest.approx(hit.explain.keyword[0], abs=1e-6)
        assert hit.score == pytest.approx(keyword + hit.explain.dense[0], abs=1e-5)


def test_the_numbers_are_kept_with_the_model(uneven: Collection, encoder: HashingEncoder) -> None:
    version = uneven.add_model(weighed_head(), {})
    home = uneven.store.path.parent
    with SearchEngine(home, readonly=True, encoder=lambda: encoder) as reader:
        assert reader.collection("uneven").head(version).keyword_weighting == (0.6, 0.3)
    assert uneven.store.model(version).record["format"] == 4
    assert uneven.store.model(uneven.add_model(Head(32), {})).record["format"] == 1


def test_a_release_that_does_not_know_a_format_refuses_it(
    uneven: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = uneven.add_model(weighed_head(), {})
    monkeypatch.setattr("dsearch.engine.models.files.NEWEST_FORMAT", 3)
    with pytest.raises(UnsupportedFormat, match="has format 4; this release reads 1 to 3"):
        uneven.head(version)


def test_heads_travel_with_their_numbers() -> None:
    read, _ = head_from_bytes(head_bytes(weighed_head()), 32)
    assert read.keyword_weighting == (0.6, 0.3)
    assert head_from_bytes(head_bytes(Head(32)), 32)[0].keyword_weighting is None
    for k1, b in ((0.0, 0.3), (1.0, 1.5)):
        tensors = {**load(head_bytes(Head(32))), "bm25": torch.tensor([k1, b])}
        with pytest.raises(InvalidRequest, match="use a number"):
            head_from_bytes(save(tensors), 32)
    tensors["bm25"] = torch.tensor([1.0])
    with pytest.raises(InvalidRequest, match=r"'bm25' of shape \[1\]; use \[2\]"):
        head_from_bytes(save(tensors), 32)


@pytest.mark.parametrize("query_side", ["low-rank", "mlp"])
def test_heads_travel_and_are_kept_with_what_moves_their_queries(
    uneven: Collection, encoder: HashingEncoder, query_side: str
) -> None:
    head = Head(32, rank=4, query_side=query_side).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.query_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    version = uneven.add_model(head, {})
    assert uneven.store.model(version).record["format"] == 7
    states = torch.as_tensor(encoder.encode_queries(["apple", "bread"]))
    for other in (head_from_bytes(head_bytes(head), 32)[0], uneven.head(version)):
        assert other.query_side == query_side
        torch.testing.assert_close(other.queries(states), head.queries(states))
    uneven.promote(version)
    expected = uneven.search("apple", model=version).hits
    assert [hit.id for hit in uneven.search("apple").hits] == [hit.id for hit in expected]


def test_a_layer_weighs_as_the_head_that_was_loaded_into_it(uneven: Collection) -> None:
    states = uneven.query_states([QUERY], "hybrid")
    wanted = SearchLayer(uneven.snapshot, weighed_head())(states, [QUERY])
    layer = SearchLayer(uneven.snapshot, Head(32).eval())
    plain = layer(states, [QUERY])
    layer.load_state_dict(SearchLayer(uneven.snapshot, weighed_head()).state_dict())
    for of in (layer, copy.deepcopy(layer)):
        torch.testing.assert_close(of(states, [QUERY]).scores, wanted.scores)
    layer.load_state_dict(SearchLayer(uneven.snapshot, Head(32)).state_dict())
    torch.testing.assert_close(layer(states, [QUERY]).scores, plain.scores)
    assert not np.array_equal(plain.scores.detach(), wanted.scores.detach())


def test_a_head_starts_from_a_tuned_one() -> None:
    tuned, head = weighed_head(), Head(32, heads=2)
    with torch.no_grad():
        tuned.keyword_weight.fill_(1.7)
        tuned.hop_strength.fill_(0.5)
    head.start_from(tuned)
    assert head.keyword_weighting == (0.6, 0.3)
    assert head.keyword_weight.tolist() == pytest.approx([1.7, 1.7])
    assert head.hop_strength.item() == 0.5
    head.start_from(Head(32))
    assert head.keyword_weighting is None
