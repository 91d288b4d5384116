"""`WordTokens`: tokens of a text with their places, to count those of its parts without a call for each.

A tokenizer of BERT's kind takes each word by itself: a word ends at white space, and a punctuation mark or a
Chinese character is a word. A part of a text therefore has the tokens that lie in it, unless a word crosses
its ends. `word_tokenizer` refuses tokenizers of other kinds, which see more than a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

# Marks that stay where accents go, and that Unicode's normal form moves past them: offsets behind one are not
# those of the text. They are the characters of category Mc with a combining class.
_MOVED = re.compile(
    "[\u1715\u1734\u1b44\u1baa\u1bf2\u1bf3\u302e\u302f\ua953\ua9c0\U000111c0\U00011235\U0001134d\U000113cf\U000116b6"
    "\U0001193d\U00011f41\U00016ff0\U00016ff1\U0001d165\U0001d166\U0001d16d-\U0001d172]"
)


class WordTokens:
    """Tokens of one text, without marks at its ends and without a prompt.

    Args:
        encoding: a `tokenizers.Encoding` of the text.
        placed: False if its offsets may not be those of the text; no part is counted then.
    """

    def __init__(self, encoding: Any, *, placed: bool = True):
        self._encoding, self._placed = encoding, placed

    def __len__(self) -> int:
        return len(self._encoding)

    def counts(self, spans: Int64[np.ndarray, "parts 2"]) -> Int64[np.ndarray, " parts"]:
        """Number of tokens of each part [start, end) of the text; -1 where a word crosses one of its ends."""
        if not self._placed:
            return np.full(len(spans), -1)
        before_start, at_start = self._before(spans[:, 0])
        before_end, at_end = self._before(spans[:, 1])
        return np.where(at_start | at_end, -1, before_end - before_start)

    def _before(
        self, offsets: Int64[np.ndarray, " parts"]
    ) -> tuple[Int64[np.ndarray, " parts"], Bool[np.ndarray, " parts"]]:
        """Number of tokens before each offset; True where a word crosses it."""
        starts, ends, words = self._places
        before = np.searchsorted(ends, offsets, side="right")
        begun = np.searchsorted(starts, offsets, side="left")
        inside = (before > 0) & (before < len(words))
        neighbours = np.where(inside, before, 1)
        in_word = inside & (words[neighbours - 1] == words[neighbours]) if len(words) > 1 else False
        return before, (before != begun) | in_word

    @cached_property
    def _places(self) -> Places:
        spans = np.array(self._encoding.offsets, np.int64).reshape(-1, 2)
        words = np.array(self._encoding.word_ids, np.int64)
        return Places(spans[:, 0], spans[:, 1], words)


class Places(NamedTuple):
    """Places of tokens, ascending.

    Attributes:
        starts: offset of the first character of each token.
        ends: offset behind its last character.
        words: number of its word.
    """

    starts: Int64[np.ndarray, " tokens"]
    ends: Int64[np.ndarray, " tokens"]
    words: Int64[np.ndarray, " tokens"]


WordTokenizer = Callable[[Sequence[str]], list[WordTokens]]


@runtime_checkable
class WordEncoder(Protocol):
    """An encoder whose tokenizer may take each word by itself."""

    def word_tokens(self, texts: Sequence[str]) -> list[WordTokens] | None:
        """Tokens of documents, none cut off; None if the tokenizer is of another kind.

        A document then has as many tokens as an empty one (`TokenCounter`) and these.
        """
        ...


def word_tokenizer(tokenizer: Any, prompt: str) -> WordTokenizer | None:
    """Return a function from texts to their tokens; None for a tokenizer that may see more than a word.

    Args:
        tokenizer: a `tokenizers.Tokenizer` that cuts no text off and pads none.
        prompt: text in front of each.
    """
    from tokenizers import models, normalizers, pre_tokenizers, processors

    by_word = (
        isinstance(tokenizer.model, models.WordPiece)
        and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(tokenizer.normalizer, normalizers.BertNormalizer | None)
        and isinstance(
            tokenizer.post_processor, processors.TemplateProcessing | processors.BertProcessing | None
        )
        # Of a token that was added: its place beside a word, or what the normal form makes of its neighbours.
        and not any(
            added.single_word or added.normalized for added in tokenizer.get_added_tokens_decoder().values()
        )
        and (not prompt or prompt.endswith(" "))
    )
    if not by_word:
        return None
    return lambda texts: [
        WordTokens(encoding, placed=text.isascii() or not _MOVED.search(text))
        for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True)
    ]


def whole_tokenizer(content: str) -> Any:
    """Return the `tokenizers.Tokenizer` of a JSON, which cuts no text off and pads none."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
