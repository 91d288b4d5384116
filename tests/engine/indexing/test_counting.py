"""Documents are cut alike, whether their parts are counted by the tokenizer or by the places of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.word_tokenizers import PROMPT, TEXTS, of_words

from dsearch.encoder import WordTokens
from dsearch.encoder.tokens import word_tokenizer
from dsearch.engine.indexing.chunking import PassageLengths, spans_of
from dsearch.types import Document

TOKENIZER = of_words()


class Counting:
    """Counts as an encoder does that tokenizes each part."""

    def __init__(self, prompt: str = ""):
        self.prompt = prompt
        self.counted: list[str] = []

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        self.counted += texts
        return [len(of) for of in TOKENIZER.encode_batch([self.prompt + text for text in texts])]


class ByPlaces(Counting):
    """Counts by the places of tokens too."""

    def word_tokens(self, texts: Sequence[str]) -> list[WordTokens] | None:
        tokenize = word_tokenizer(TOKENIZER, self.prompt)
        assert tokenize is not None
        return tokenize(texts)


def spans(encoder: Any, documents: Sequence[Document], lengths: PassageLengths) -> Any:
    return spans_of(encoder, documents, lengths)


@given(
    parts=st.lists(TEXTS, min_size=1, max_size=12),
    seam=st.sampled_from([" ", "", "\n\n", ". "]),
    title=TEXTS,
    lengths=st.sampled_from([PassageLengths(16, 0), PassageLengths(16, 7), PassageLengths(40, 5)]),
    prompt=st.sampled_from(["", PROMPT]),
)
def test_hard_texts(parts: list[str], seam: str, title: str, lengths: PassageLengths, prompt: str) -> None:
    text = seam.join(parts)
    documents = [Document("a", text, title), Document("b", text), Document("c", f"{text} {text}", title)]
    assert spans(ByPlaces(prompt), documents, lengths) == spans(Counting(prompt), documents, lengths)


@pytest.mark.parametrize("tokens", range(16, 24))
def test_texts_at_the_edge_of_a_passage(tokens: int) -> None:
    documents = [
        Document("d", "foo " * words, "bar " * titled) for words in range(9, 25) for titled in (0, 3)
    ]
    lengths = PassageLengths(tokens, tokens // 8)
    by_places = spans(ByPlaces(), documents, lengths)
    assert by_places == spans(Counting(), documents, lengths)
    assert 0 < len(by_places) < len(documents)


def test_words_are_tokenized_once() -> None:
    """Only the marks around a text are counted by the tokenizer, and parts of words without blanks."""
    encoder, lengths = ByPlaces(), PassageLengths(16, 2)
    sentence = "Foo bar, don't foo-bar (x) 3.14.\n"
    assert spans(encoder, [Document("d", sentence * 20, "Foo"), Document("e", "foo")], lengths)
    assert encoder.counted == [""]
    assert spans(encoder, [Document("d", "x" * 90 + " foo" * 30)], lengths)
    assert encoder.counted[1:]
    assert all(text and set(text) == {"x"} for text in encoder.counted[2:])
