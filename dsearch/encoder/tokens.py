"""What an encoder tells about the tokens of texts: counts, ids, states and places.

`TokenCounter` counts them, to cut texts that are longer than the window. `TokenEncoder` gives the state of
each: the embedding of a text is pooled from them, so one pass gives both. `WordEncoder` gives their places,
to count those of a text's parts without a call for each. For that a tokenizer must take each word by itself,
as BERT's does: a word ends at white space, and a punctuation mark or a Chinese character is a word. A part of
a text then has the tokens that lie in it, unless a word crosses its ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int64


@runtime_checkable
class TokenCounter(Protocol):
    """An encoder that counts tokens. Long documents are cut for those alone; others cut texts off."""

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each document, its marks at both ends and the prompt included, none cut off."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids of an encoder.

    Attributes:
        first: id before every text; None without.
        last: id after every text; None without.
        size: number of ids.
        decode: function from ids to their text, special tokens left out.
    """

    first: int | None
    last: int | None
    size: int
    decode: Callable[[Sequence[int]], str]


class TextTokens(NamedTuple):
    """The tokens of one text, without the marks at both ends and without a prompt.

    Attributes:
        states: of unit length.
        spans: [start, end) of each in characters of the text, ascending.
    """

    states: Float32[np.ndarray, "tokens encoder_dim"]
    spans: Int64[np.ndarray, "tokens 2"]


@runtime_checkable
class TokenEncoder(Protocol):
    """An encoder that also gives the states of tokens."""

    def encode_tokens(
        self, texts: Sequence[str], role: Any = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """Unit embeddings of texts as `encode_documents` or `encode_queries` gives them, and their tokens."""
        ...


def inside_text(
    spans: Int64[np.ndarray, "tokens 2"], special: Bool[np.ndarray, " tokens"], prompt: str
) -> Bool[np.ndarray, " tokens"]:
    """True for tokens of the text itself: no marks, none of the prompt in front, none without characters."""
    return ~special & (spans[:, 0] >= len(prompt)) & (spans[:, 1] > spans[:, 0])


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
