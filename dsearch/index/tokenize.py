"""Text to terms, the same way for documents and for queries.

A text is brought to Unicode's compatibility form, lower-cased and split into words; stop words are dropped
and what is left is stemmed (Snowball, through PyStemmer). What a tokenizer does is named by its `settings()`,
which are stored beside every keyword index: a query is always cut by the settings that cut the documents.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import Stemmer
from bm25s.stopwords import STOPWORDS_EN
from jaxtyping import Float64, Int64

from dsearch.errors import InvalidRequest

# Registered short names, because a stored index names its parts and never carries a pattern to run.
# `words`: runs of at least two letters, digits or underscores.
SPLITTERS = {"words": re.compile(r"\w\w+")}


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Cuts texts into terms. Equal tokenizers give equal terms; instances are immutable and safe to share.

    Attributes:
        splitter: a name in `SPLITTERS`.
        stop_words: lower-case words that are dropped before stemming; Lucene's 33 English ones by default.
        stemmer: a Snowball algorithm that PyStemmer knows, or None for no stemming.

    Raises:
        InvalidRequest: an unknown splitter or stemmer.
    """

    splitter: str = "words"
    stop_words: tuple[str, ...] = tuple(STOPWORDS_EN)
    stemmer: str | None = "english"

    def __post_init__(self) -> None:
        if self.splitter not in SPLITTERS:
            raise InvalidRequest(f"splitter={self.splitter!r}; use one of {', '.join(sorted(SPLITTERS))}")
        if self.stemmer is not None and self.stemmer not in Stemmer.algorithms():
            allowed = ", ".join(sorted(Stemmer.algorithms()))
            raise InvalidRequest(f"stemmer={self.stemmer!r}; use null or one of {allowed}")

    def terms(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """The terms of each text, in the order of the text, repeated as often as they occur.

        Lazy: a corpus may be streamed through. Each distinct word is stemmed once per call.
        """
        find_words = SPLITTERS[self.splitter].findall
        # PyStemmer's objects must not be shared between threads; making one costs less than a microsecond.
        stem = Stemmer.Stemmer(self.stemmer, 0).stemWord if self.stemmer else str
        stems: dict[str, str | None] = dict.fromkeys(self.stop_words)  # a stop word's stem is None
        for text in texts:
            normal = text if text.isascii() else unicodedata.normalize("NFKC", text)
            terms: list[str] = []
            for word in find_words(normal.lower()):
                if word in stems:
                    term = stems[word]
                else:
                    term = stems[word] = stem(word)
                if term is not None:
                    terms.append(term)
            yield terms

    def settings(self) -> dict[str, Any]:
        """What `from_settings` needs to make an equal tokenizer, as JSON."""
        return {"splitter": self.splitter, "stop_words": list(self.stop_words), "stemmer": self.stemmer}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that `settings()` described.

        Raises:
            InvalidRequest: a name in it is not registered in this release.
        """
        return cls(settings["splitter"], tuple(settings["stop_words"]), settings["stemmer"])


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Texts cut once and kept by term, so that many queries can be scored against them quickly.

    Made by `TokenizedTexts.of(tokenizer, texts)`; positions count from 0 in the order of the texts.

    Attributes:
        tokenizer: what cut them.
        lengths: number of terms in each text.
        postings: term → (ascending positions of the texts that hold it, how often each holds it).
    """

    tokenizer: Tokenizer
    lengths: Int64[np.ndarray, " texts"]
    postings: dict[str, tuple[Int64[np.ndarray, " holding"], Float64[np.ndarray, " holding"]]] = field(
        repr=False
    )

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizedTexts:
        """Cut `texts` with `tokenizer`."""
        lengths: list[int] = []
        holders: dict[str, tuple[list[int], list[int]]] = {}
        for position, terms in enumerate(tokenizer.terms(texts)):
            lengths.append(len(terms))
            for term, count in Counter(terms).items():
                positions, counts = holders.setdefault(term, ([], []))
                positions.append(position)
                counts.append(count)
        postings = {
            term: (np.array(positions, np.int64), np.array(counts, np.float64))
            for term, (positions, counts) in holders.items()
        }
        return cls(tokenizer, np.array(lengths, np.int64), postings)

    def __len__(self) -> int:
        return len(self.lengths)
