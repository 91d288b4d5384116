"""BM25 against a plain implementation of the formula, and every path against every other."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.errors import InvalidRequest
from dsearch.index import KeywordIndex, TokenizedTexts, Tokenizer
from dsearch.index.keyword.query import QueryTerms, Spelling

PLAIN = Tokenizer(stop_words=(), stemmer=None)
WORDS = ["aa", "bb", "cc", "dd", "ee", "ff"]
texts_of = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
corpora = st.lists(texts_of, max_size=8)


def reference(query: str, document: str, corpus: list[str], k1: float, b: float) -> float:
    """The formula b(q, d), term by term and document by document; `document` need not be of the corpus."""
    lengths = [len(text.split()) for text in corpus]
    average = sum(lengths) / len(lengths) if lengths else 0.0
    words = document.split()
    above = below = 0.0
    for term in query.split():
        df = sum(term in text.split() for text in corpus)
        idf = math.log(1 + (len(corpus) - df + 0.5) / (df + 0.5))
        tf = words.count(term)
        relative = len(words) / average if average else 1.0
        above += idf * tf / (tf + k1 * (1 - b + b * relative)) if tf else 0.0
        below += idf
    return above / below if below else 0.0


@given(
    corpus=corpora,
    query=texts_of,
    fresh=corpora,
    k1=st.sampled_from([0.5, 1.5]),
    b=st.sampled_from([0.0, 0.75, 1.0]),
)
def test_equals_the_formula(corpus: list[str], query: str, fresh: list[str], k1: float, b: float) -> None:
    index = KeywordIndex.build(corpus, tokenizer=PLAIN, k1=k1, b=b)
    scores = index.scores([query])
    assert scores.shape == (1, len(corpus))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores[0], [reference(query, d, corpus, k1, b) for d in corpus], atol=1e-6)
    assert ((scores >= 0) & (scores < 1)).all()
    of_texts = index.scores_of_texts(query, fresh)
    np.testing.assert_allclose(of_texts, [reference(query, d, corpus, k1, b) for d in fresh], atol=1e-6)


def test_an_identifier_that_no_document_has_counts_as_its_parts() -> None:
    index = KeywordIndex.build(["read_csv now", "read a csv file", "write"], tokenizer=PLAIN)
    as_parts = index.scores(["read csv"])[0]
    assert as_parts[0] > 0
    np.testing.assert_array_equal(index.scores(["readCsv"])[0], as_parts)
    assert index.scores(["read_csv"])[0, 1] < as_parts[1]  # the whole form, which is in the first, counts


@given(corpus=corpora, query=texts_of, k=st.integers(1, 10), seed=st.integers(0, 99))
def test_all_paths_agree_to_the_last_bit(corpus: list[str], query: str, k: int, seed: int) -> None:
    index = KeywordIndex.build(corpus, tokenizer=PLAIN)
    scores = index.scores([query])[0]
    np.testing.assert_array_equal(index.scores_of_texts(query, corpus), scores)
    cut = TokenizedTexts.of(PLAIN, corpus)
    np.testing.assert_array_equal(index.scores_of_texts(query, cut), scores)

    rng = np.random.default_rng(seed)
    positions = rng.integers(-1, len(corpus), 12) if corpus else np.full(3, -1)
    expected = np.array([0 if p < 0 else scores[p] for p in positions], np.float32)
    np.testing.assert_array_equal(index.scores_at(query, positions), expected)

    exclude = rng.random(len(corpus)) < 0.3
    found_scores, found = index.search([query], k, exclude)
    best = [
        p for p in sorted(range(len(corpus)), key=lambda p: (-scores[p], p)) if scores[p] and not exclude[p]
    ]
    assert found[0].tolist() == best[:k] + [-1] * (k - len(best[:k]))
    assert found_scores[0].tolist() == scores[best[:k]].tolist() + [0.0] * (k - len(best[:k]))

    for position, text in enumerate(corpus):
        shares = index.explain(query, position)
        assert sum(shares.values()) == pytest.approx(float(scores[position]), abs=1e-6)
        assert shares.keys() <= set(query.split()) & set(text.split())
        assert shares == index.explain_text(query, text)


def test_documents_and_queries_are_cut_alike() -> None:
    index = KeywordIndex.build(["Searching the INDEXES", "ﬁle names", "naïve Straße", "snake_case x"])
    found = index.search(["search index", "the", "file", "nai\u0308ve", "STRASSE", "snake_case", "x"], 1)[1]
    # "ß" stays "ß" when lower-cased, so the sixth query's spelling is another word; one letter is no term.
    assert found[:, 0].tolist() == [0, -1, 1, 2, -1, 3, -1]


@pytest.mark.parametrize("corpus", [[], [""], ["the", "and of the", ""]])
def test_corpora_without_terms(corpus: list[str], tmp_path: Path) -> None:
    built = KeywordIndex.build(corpus)
    built.save(tmp_path / "keyword")
    for index in (
        built,
        KeywordIndex.load(tmp_path / "keyword"),
        KeywordIndex.load(tmp_path / "keyword", mmap=True),
    ):
        assert len(index) == len(corpus)
        scores, positions = index.search(["hello world", "", "the"], 3)
        assert not scores.any()
        assert (positions == -1).all()
        assert not index.scores(["hello"]).any()
        fresh = index.scores_of_texts("hello", ["hello", "world", ""])
        assert fresh[0] == pytest.approx(1 / 2.5)
        assert fresh[1:].tolist() == [0, 0]


def test_a_query_without_terms_scores_zero_everywhere() -> None:
    index = KeywordIndex.build(["hello", "world"])
    for query in ("", "the of", "?!"):
        assert index.scores([query]).tolist() == [[0, 0]]
        assert index.scores_at(query, np.array([0, 1, -1])).tolist() == [0, 0, 0]
        assert index.scores_of_texts(query, ["hello"]).tolist() == [0]
        assert index.explain(query, 0) == {}


def test_no_queries_and_k_above_the_corpus() -> None:
    index = KeywordIndex.build(["aa bb", "bb"])
    assert index.search([], 3)[0].shape == (0, 3)
    assert index.scores([]).shape == (0, 2)
    assert index.search(["bb"], 100)[1][0, :3].tolist() == [1, 0, -1]


def test_equal_texts_are_found_in_order_where_k_cuts_them() -> None:
    index = KeywordIndex.build(["bb cc", "aa"] * 50)
    assert index.search(["aa"], 7)[1].tolist() == [[1, 3, 5, 7, 9, 11, 13]]


def test_save_and_load_are_exact_and_equal_texts_give_equal_files(tmp_path: Path) -> None:
    corpus = ["one two three", "two three four", "three"]
    built = KeywordIndex.build(corpus)
    built.save(tmp_path / "a")
    KeywordIndex.build(iter(corpus)).save(tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    for mmap in (False, True):
        loaded = KeywordIndex.load(tmp_path / "a", mmap=mmap)
        assert loaded.settings() == built.settings()
        np.testing.assert_array_equal(loaded.scores(["two four"]), built.scores(["two four"]))


def test_wrong_arguments_say_what_is_allowed() -> None:
    index = KeywordIndex.build(["one", "two"])
    with pytest.raises(InvalidRequest, match="k=0; use an integer of at least 1"):
        index.search(["one"], 0)
    with pytest.raises(InvalidRequest, match=r"use booleans of shape \(2,\)"):
        index.search(["one"], 1, np.zeros(3, bool))
    with pytest.raises(InvalidRequest, match="position 2; use 0 to 1, or -1 for none"):
        index.scores_at("one", np.array([0, 2]))
    with pytest.raises(InvalidRequest, match="position -1; use 0 to 1"):
        index.explain("one", -1)
    with pytest.raises(InvalidRequest, match="cut them again"):
        index.scores_of_texts("one", TokenizedTexts.of(PLAIN, ["one"]))
    with pytest.raises(InvalidRequest, match=r"k1=0\.0; use a number above 0"):
        KeywordIndex.build([], k1=0.0)
    with pytest.raises(InvalidRequest, match=r"b=2\.0; use a number from 0 to 1"):
        KeywordIndex.build([], b=2.0)


def test_threads_share_an_index() -> None:
    corpus = [f"word{i % 17} number{i}ing studies" for i in range(400)]
    index = KeywordIndex.build(corpus)
    queries = [f"word{i % 17} studying number{i}ing" for i in range(200)]
    expected = index.search(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda query: index.search([query], 5), queries))
    np.testing.assert_array_equal(np.concatenate([scores for scores, _ in answers]), expected[0])
    np.testing.assert_array_equal(np.concatenate([positions for _, positions in answers]), expected[1])


def test_queries_are_cut_once_whatever_k1_and_b(monkeypatch: pytest.MonkeyPatch) -> None:
    index = KeywordIndex.build(["a river", "a stone, a river", "a stone"])
    cut: list[str] = []
    terms_of = QueryTerms._cut
    monkeypatch.setattr(QueryTerms, "_cut", lambda self, query: cut.append(query) or terms_of(self, query))
    own, others = index.scores(["river"]), index.weighed((0.5, 0.4)).scores(["river"])
    assert cut == ["river"]
    assert (own > 0).tolist() == (others > 0).tolist()
    built = KeywordIndex.build(["a river", "a stone, a river", "a stone"], k1=0.5, b=0.4)
    np.testing.assert_array_equal(others, built.scores(["river"]))


def test_some_texts_score_as_all_do():
    index = KeywordIndex.build(["apple pie", "apple", "pear tree"])
    texts = TokenizedTexts.of(index.tokenizer, ["apple", "quince", "pear apple apple", "tree tree"])
    at = np.array([2, 0, 2, 3])
    for query in ("apple", "apple tree quince", "none", ""):
        every = index.scores_of_texts(query, texts)
        np.testing.assert_array_equal(index.scores_of_texts(query, texts, at), every[at])
        assert index.scores_of_texts(query, texts, at[:0]).shape == (0,)


@pytest.mark.parametrize(("frequencies", "nearest"), [([3, 7], "mouse"), ([7, 3], "house")])
def test_of_equally_similar_terms_the_more_frequent_replaces_a_misspelt_one(
    frequencies: list[int], nearest: str
) -> None:
    spelling = Spelling(["house", "mouse"], np.array(frequencies))
    assert spelling.nearest(["couse"]) == spelling.nearest(["couse", "zzzzz"]) == nearest
    assert spelling.nearest(["cow"]) is None


def test_an_identifier_with_a_known_part_is_not_misspelt() -> None:
    index = KeywordIndex.build(["a kettle boils", "water"])
    newer = TokenizedTexts.of(index.tokenizer, [])
    assert index.respelt("ketle kettle.zzzzzz", newer) == "kettl kettle.zzzzzz"


def test_a_word_weighs_as_much_as_its_rarest_term() -> None:
    index = KeywordIndex.build(["read_csv", "read csv", "read", "csv"])
    assert index.idf("read_csv") > index.idf("read") > 0


@pytest.mark.parametrize(
    ("query", "respelt"),
    [
        ("databse", "database"),  # whose stem, databas, would be stemmed again
        ("the Desisions", "the decisions"),
        ("embbeding kitchn", "embeding kitchen"),
        ("databss", "databss"),  # without an ending that leads there
        ("embeddings", "embeddings"),
    ],
)
def test_a_misspelt_word_is_replaced_by_one_with_the_stem_that_documents_have(
    query: str, respelt: str
) -> None:
    index = KeywordIndex.build(["a database of decisions", "embedding", "kitchen"])
    newer = TokenizedTexts.of(index.tokenizer, [])
    assert index.respelt(query, newer) == respelt
    known = {term.term_id >= 0 for term in index._terms.of(respelt)}
    assert known == {respelt != "databss"}
