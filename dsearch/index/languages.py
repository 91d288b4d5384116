"""Languages of texts: a Snowball stemmer and the words that are too frequent to tell documents apart.

The stop words are bm25s' lists (English: Lucene's 33). A language without a list keeps all its words.
"""

from __future__ import annotations

import bm25s.stopwords as lists
import Stemmer

from dsearch.errors import InvalidRequest

NO_LANGUAGE = "none"

_STOP_WORDS = {
    "danish": lists.STOPWORDS_DANISH,
    "dutch": lists.STOPWORDS_DUTCH,
    "english": lists.STOPWORDS_EN,
    "french": lists.STOPWORDS_FRENCH,
    "german": lists.STOPWORDS_GERMAN,
    "italian": lists.STOPWORDS_ITALIAN,
    "norwegian": lists.STOPWORDS_NORWEGIAN,
    "portuguese": lists.STOPWORDS_PORTUGUESE,
    "russian": lists.STOPWORDS_RUSSIAN,
    "spanish": lists.STOPWORDS_SPANISH,
    "swedish": lists.STOPWORDS_SWEDISH,
    "turkish": lists.STOPWORDS_TURKISH,
}
# Older or experimental algorithms for a language that has another one: no languages of their own.
_VARIANTS = {"porter", "dutch_porter", "lovins"}


def languages() -> tuple[str, ...]:
    """What `Tokenizer.for_language` takes, sorted: Snowball's languages and "none"."""
    return tuple(sorted({*Stemmer.algorithms(), NO_LANGUAGE} - _VARIANTS))


def stemmer_and_stop_words(language: str) -> tuple[str | None, tuple[str, ...]]:
    """The Snowball algorithm and the stop words of a language; for "none" no algorithm and no words.

    Raises:
        InvalidRequest: not one of `languages()`.
    """
    if language not in languages():
        raise InvalidRequest(f"language={language!r}; use one of {', '.join(languages())}")
    if language == NO_LANGUAGE:
        return None, ()
    return language, tuple(_STOP_WORDS.get(language, ()))
