"""Cutting: identifiers beside their parts, languages, settings that are refused when they cut otherwise."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

import dsearch.index.keyword.tokenizer as tokenize
from dsearch.errors import InvalidRequest, UnsupportedFormat
from dsearch.index import KeywordIndex, Tokenizer, languages
from dsearch.index.keyword.tokenizer import SPLITTERS, parts

PLAIN = Tokenizer(stop_words=(), stemmer=None)


def terms(text: str, tokenizer: Tokenizer = PLAIN) -> list[str]:
    return next(tokenizer.terms([text]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("csv.DictReader", "csv.dictreader csv dictreader dict reader"),
        ("read_csv()", "read_csv read csv"),
        ("HTTPServer2", "httpserver2 http server2 server"),
        ("__init__", "__init__ init"),
        ("Int64Array", "int64array int64 int 64 array"),
        ("utf8_decode", "utf8_decode utf8 utf decode"),
        ("p53 base64 GPT4", "p53 base64 gpt4"),
        ("mRNA", "mrna rna"),
        ("RNAs siRNAs", "rnas sirnas si rnas"),
        ("PubMed McDonald", "pubmed pub med mcdonald mc donald"),
        ("the end.Then more.", "the end.then end then more"),
        ("e.g. U.S. 0.05 3.14159 1.2.3", "05 14159"),
        ("state-of-the-art C++ x", "state of the art"),
        ("www.example.com/a_b", "www.example.com www example com a_b"),
        ("größteÄnderung ΑλφαΒήτα", "größteänderung größte änderung αλφαβήτα αλφα βήτα"),
        ("हिन्दी தமிழ்", "हिन्दी தமிழ்"),
        ("___ _", "___"),
    ],
)
def test_identifiers_are_cut_beside_their_whole_form(text: str, expected: str) -> None:
    assert terms(text) == expected.split()


def test_the_words_splitter_leaves_them_whole() -> None:
    plain = Tokenizer(splitter="words", stop_words=(), stemmer=None)
    assert terms("csv.DictReader read_csv x", plain) == ["csv", "dictreader", "read_csv"]


@given(st.text(st.sampled_from("aBcsDÉß_.12 é\u0301-ΣИж字")))
def test_leaves_cover_each_word_in_order_without_overlap(text: str) -> None:
    for word in SPLITTERS["identifiers"].words.findall(tokenize.normal_form(text)):
        leaves = [piece for piece in parts(word) if piece.leaf]
        assert all(a.end <= b.start for a, b in pairwise(leaves))
        covered = "".join(word[piece.start : piece.end] for piece in leaves)
        assert covered.replace("_", "") == word.replace("_", "").replace(".", "")
        assert len(set(parts(word))) == len(parts(word))


@pytest.mark.parametrize(
    "query", ["csv.DictReader", "DictReader", "dict reader", "reader", "csv", "CSV_READER"]
)
def test_an_identifier_is_found_by_its_whole_form_and_by_its_parts(query: str) -> None:
    index = KeywordIndex.build(["nothing here", "use csv.DictReader to read", "other words"])
    assert index.search([query], 3)[1].tolist() == [[1, -1, -1]]


def test_the_whole_form_ranks_above_the_parts() -> None:
    index = KeywordIndex.build(["read the csv", "read_csv", "csv to read", "none"])
    assert index.search(["read_csv"], 1)[1].tolist() == [[1]]


def test_a_whole_form_that_no_document_holds_is_left_to_its_parts() -> None:
    index = KeywordIndex.build(["read the csv", "something else"])
    np.testing.assert_array_equal(index.scores(["readCsv"]), index.scores(["read csv"]))
    assert index.scores_of_texts("readCsv", ["readCsv"])[0] > 0
    # A whole form with no scored part stands for itself like any other word.
    assert index.scores_of_texts("x_y", ["nothing"]).tolist() == [0]


@pytest.mark.parametrize("language", languages())
def test_every_language_cuts_and_travels(language: str) -> None:
    tokenizer = Tokenizer.for_language(language)
    assert Tokenizer.from_settings(tokenizer.settings()) == tokenizer
    assert terms("hello world", tokenizer)


def test_languages_stem_and_drop_their_own_words() -> None:
    assert terms("Die Häuser der Stadt", Tokenizer.for_language("german")) == ["haus", "stadt"]
    assert terms("Les maisons de la ville", Tokenizer.for_language("french")) == ["maison", "vill"]
    assert terms("The houses of", Tokenizer.for_language("none")) == ["the", "houses", "of"]
    assert terms("The houses of", Tokenizer.for_language("english")) == ["hous"]
    with pytest.raises(InvalidRequest, match=r"language='klingon'; use one of arabic, .*none"):
        Tokenizer.for_language("klingon")


def test_the_probe_puts_every_stemmer_to_the_test() -> None:
    unstemmed = PLAIN.probe()
    probes = {name: Tokenizer(stop_words=(), stemmer=name).probe() for name in Stemmer.algorithms()}
    assert unstemmed not in probes.values()
    assert len(set(probes.values())) == len(probes)


def test_a_stemmer_that_stems_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeywordIndex.build(["some texts"]).save(tmp_path)
    original = Stemmer.Stemmer

    class Newer:
        def __init__(self, algorithm: str, cache: int):
            self._stemmer = original(algorithm, cache)

        def stemWord(self, word: str) -> str:
            return "skie" if word == "skies" else self._stemmer.stemWord(word)

    monkeypatch.setattr(Stemmer, "Stemmer", Newer)
    with pytest.raises(
        UnsupportedFormat, match=r"english stemmer of PyStemmer .* other terms .*build the generation again"
    ):
        KeywordIndex.load(tmp_path)


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_tokenizer_version_is_refused_with_the_way_out(version: Any) -> None:
    changed: dict[str, Any] = {**PLAIN.settings(), "version": version}
    with pytest.raises(
        UnsupportedFormat, match=r"tokenizer version .*; this release has 1: build the generation again"
    ):
        Tokenizer.from_settings(changed)
    assert Tokenizer.from_settings(changed, rebuild=True) == PLAIN


def test_the_rules_are_pinned_to_their_version() -> None:
    """Where this fails texts are cut otherwise than before: raise TOKENIZER_VERSION, pin the new digest."""
    assert (tokenize.TOKENIZER_VERSION, PLAIN.probe()) == (
        1,
        "f8d6990ec51910d9dc1e5a5071d03dfa5566946166994205b760ace317856ce9",
    )
