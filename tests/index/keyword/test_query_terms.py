"""Terms of a query and their weights, by the formula, and which queries are cached."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.index.keyword import query
from dsearch.index.keyword.data import KeywordData
from dsearch.index.keyword.query import CorpusStatistics, QueryTerms
from dsearch.index.keyword.tokenizer import TokenizedWord, Tokenizer

TEXTS = ["apple bread", "apple readCsv", "csv", "read"]
PLAIN = Tokenizer(stop_words=("the",), stemmer=None)


def terms(
    texts: list[str] = TEXTS, tokenizer: Tokenizer = PLAIN, statistics: CorpusStatistics | None = None
) -> QueryTerms:
    return QueryTerms(KeywordData.of(texts, tokenizer, k1=1.2, b=0.75), statistics)


def idf(frequency: int, documents: int = 4) -> float:
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


def factors(of: QueryTerms, query: str) -> dict[str, float]:
    return {term.term: float(term.factor) for term in of.of(query)}


def test_factors_are_counts_over_the_sum_of_idf() -> None:
    divisor = 2 * idf(2) + idf(1)
    expected = {"apple": 2 / divisor, "bread": 1 / divisor}
    assert factors(terms(), "apple the bread apple") == pytest.approx(expected, rel=1e-6)


def test_a_term_in_no_document_counts_in_the_denominator() -> None:
    divisor = idf(2) + idf(0)
    of = terms()
    assert factors(of, "apple kiwi") == pytest.approx({"apple": 1 / divisor, "kiwi": 1 / divisor}, rel=1e-6)
    apple, kiwi = of.of("apple kiwi")
    assert (kiwi.term_id, kiwi.idf) == (-1, pytest.approx(idf(0)))
    assert (apple.term_id, apple.idf) == (of.number("apple"), pytest.approx(idf(2)))


def test_an_identifier_counts_as_a_whole_where_a_document_has_it() -> None:
    assert list(factors(terms(), "readCsv")) == ["readcsv", "read", "csv"]
    assert list(factors(terms(["csv", "read"]), "readCsv")) == ["read", "csv"]


def test_a_word_of_several_languages_counts_as_its_terms_that_documents_have() -> None:
    """And as its first term where documents have none of them: it counts once, in the denominator."""
    word = TokenizedWord(("casa",), ((0, 5),), ("casa",), None, ("casas", "cas"))
    tokenizer = SimpleNamespace(query_words=lambda query: [word])

    def counted(*vocabulary: str) -> list[str]:
        offsets = np.arange(len(vocabulary) + 1)
        data: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=vocabulary, documents=1, offsets=offsets)
        return [term.term for term in QueryTerms(data).of("casas")]

    assert counted("casa", "casas", "cas") == ["casa", "casas", "cas"]
    assert counted("cas") == ["cas"]
    assert counted("other", "cas", "casas") == ["casas", "cas"]
    assert counted("other") == ["casa"]


def test_statistics_of_the_whole_corpus_replace_those_of_a_part() -> None:
    part = terms()
    assert (part.documents, part.statistics.documents) == (4, 4)
    frequencies = np.zeros_like(part.statistics.frequencies)
    frequencies[part.number("apple")], frequencies[part.number("bread")] = 30, 7
    of = terms(statistics=CorpusStatistics(100, frequencies))
    divisor = idf(30, 100) + idf(7, 100)
    assert of.documents == of.statistics.documents == 100
    assert factors(of, "apple bread") == pytest.approx({"apple": 1 / divisor, "bread": 1 / divisor}, rel=1e-6)


def test_frequencies_are_those_of_the_documents() -> None:
    of = terms()
    frequencies = of.statistics.frequencies.tolist()
    assert {word: frequencies[of.number(word)] for word in ("apple", "bread", "readcsv", "read", "csv")} == {
        "apple": 2,
        "bread": 1,
        "readcsv": 1,
        "read": 2,
        "csv": 2,
    }
    assert of.number("kiwi") == -1


def test_queries_are_cached_up_to_a_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_REMEMBERED", 10)
    of = terms()
    first = of.of("apple")
    assert of.of("apple") is first
    of.of("bread")  # ten characters, which still fit
    assert (of.remembered, of.of("apple") is first) == (2, True)
    of.of("csv")
    assert of.remembered == 1
    of.of("read")  # seven since it was emptied
    assert of.remembered == 2
    assert of.of("apple") is not first
    assert of.remembered == 1


def test_a_query_without_terms_has_none() -> None:
    assert terms().of("the ...") == []
    assert terms([]).of("apple")[0].term_id == -1
