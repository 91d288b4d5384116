"""Tokens of a text's parts, counted by the places of tokens: as many as the tokenizer gives for the part."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from support.word_tokenizers import PROMPT, TEXTS, of_words
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from dsearch.encoder.tokens import _MOVED, WordTokens, whole_tokenizer, word_tokenizer

TOKENIZER = of_words()
KEPT = of_words(normalizer=normalizers.BertNormalizer(strip_accents=False, lowercase=False))


def words_of(tokenizer: Tokenizer, prompt: str = "") -> Callable[[str], WordTokens]:
    tokenize = word_tokenizer(tokenizer, prompt)
    assert tokenize is not None
    return lambda text: tokenize([text])[0]


def real_count(tokenizer: Tokenizer, text: str, prompt: str) -> int:
    marks = len(tokenizer.encode(prompt))
    return len(tokenizer.encode(prompt + text)) - marks


@pytest.mark.parametrize("prompt", ["", PROMPT])
@pytest.mark.parametrize("tokenizer", [TOKENIZER, KEPT], ids=["lower", "kept"])
@given(text=TEXTS)
@example(text="e\u0301\u302e")
@example(text="a\x1cb foo\u200bbar e\u0301 中文x [SEP][MASK] 한국")
def test_a_part_has_the_tokens_that_lie_in_it(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    tokens = words_of(tokenizer, prompt)(text)
    assert len(tokens) == real_count(tokenizer, text, prompt)
    ends = range(len(text) + 1)
    spans = [(start, end) for start in ends[:16] for end in ends[start:][:16]]
    counts = tokens.counts(np.array(spans, np.int64))
    for (start, end), count in zip(spans, counts.tolist(), strict=True):
        assert count in (-1, real_count(tokenizer, text[start:end], prompt)), (text[start:end], start, end)


def test_only_what_a_word_crosses_is_not_counted() -> None:
    text = "  Foobar, foo [SEP] 中文 a\u0301b"
    spans = np.array([(0, 8), (2, 9), (0, len(text)), (-3, 99), (20, 21), (3, 8), (0, 5), (14, 16), (9, 24)])
    counts = words_of(TOKENIZER)(text).counts(spans)
    assert counts.tolist() == [4, 5, 11, 11, 1, -1, -1, -1, -1]
    assert words_of(TOKENIZER)("").counts(np.array([(0, 0), (0, 5)])).tolist() == [0, 0]
    assert words_of(TOKENIZER)("foo").counts(np.array([(0, 3), (1, 3)])).tolist() == [1, -1]
    assert words_of(TOKENIZER)("foo").counts(np.zeros((0, 2), np.int64)).tolist() == []


def added(**options: bool) -> Tokenizer:
    tokenizer = of_words()
    tokenizer.add_tokens([AddedToken("foobar", **options)])
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        of_words(pre_tokenizer=pre_tokenizers.Metaspace()),
        of_words(pre_tokenizer=pre_tokenizers.ByteLevel()),
        of_words(normalizer=normalizers.NFKC()),
        of_words(post_processor=processors.ByteLevel()),
        added(single_word=True, normalized=False),
        added(normalized=True),
        Tokenizer(models.Unigram([("a", -1.0)], unk_id=0)),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tokenizer: Tokenizer) -> None:
    assert word_tokenizer(tokenizer, "") is None


def test_a_prompt_that_a_text_continues_is_refused() -> None:
    assert word_tokenizer(TOKENIZER, "passage") is None
    assert word_tokenizer(TOKENIZER, PROMPT) is not None


def test_a_whole_tokenizer_cuts_no_text_off() -> None:
    short = of_words()
    short.enable_truncation(4)
    short.enable_padding(length=9)
    whole = whole_tokenizer(short.to_str())
    assert len(whole.encode("foo " * 20)) == 22
    assert len(whole.encode("foo")) == 3
    assert len(short.encode("foo " * 20)) == 9


def test_marks_that_a_normal_form_moves_are_those_of_unicode() -> None:
    every = map(chr, range(sys.maxunicode + 1))
    moved = {one for one in every if unicodedata.combining(one) and unicodedata.category(one) != "Mn"}
    assert moved <= set(filter(_MOVED.match, map(chr, range(sys.maxunicode + 1))))
    text = "foo bar\u302e"
    assert words_of(TOKENIZER)(text).counts(np.array([(0, 3), (0, 8)])).tolist() == [-1, -1]
