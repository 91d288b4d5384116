"""Text to terms, the same way for documents and for queries.

A text is brought to Unicode's compatibility form (NFKC) and cut into words; a word is lower-cased and stemmed
(Snowball, through PyStemmer), and an identifier also gives its parts (`words.py`). Stop words and single
characters are no terms: they are *silent*, found only inside a phrase.

What a tokenizer does is named by its `settings()`, which are stored beside every keyword index: a query is
always cut as the documents were cut. The settings carry a version of the rules here and in `words.py`, and a
probe, the digest of a fixed sentence's terms, which notices a stemmer that stems differently.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import Stemmer

from dsearch.errors import InvalidRequest, UnsupportedFormat
from dsearch.index.languages import stemmer_and_stop_words
from dsearch.index.words import SPLITTERS

# Raised with every change to the rules that gives some text other terms. It is stored with each index.
TOKENIZER_VERSION = 1

_SILENT = " "  # begins the symbol of a silent word: no term begins with a blank
_REBUILD = "build the generation again"


class Word(NamedTuple):
    """A word, cut.

    Attributes:
        terms: what is counted: the whole form, then an identifier's parts.
        spans: [start, end) of each term in the word.
        leaves: the word as a sequence of symbols, for phrases: a term, or a blank and a silent word.
        whole: the whole form where it stands beside its parts, else None.
    """

    terms: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    leaves: tuple[str, ...]
    whole: str | None


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Cuts texts into terms. Equal tokenizers give equal terms; instances are immutable and safe to share.

    Attributes:
        splitter: a name in `SPLITTERS`: "identifiers", or "words" to leave identifiers whole.
        stop_words: lower-case words that are no terms; Lucene's 33 English ones by default.
        stemmer: a Snowball algorithm that PyStemmer knows, or None for no stemming.

    Raises:
        InvalidRequest: an unknown splitter or stemmer.
    """

    splitter: str = "identifiers"
    stop_words: tuple[str, ...] = stemmer_and_stop_words("english")[1]
    stemmer: str | None = "english"

    def __post_init__(self) -> None:
        if self.splitter not in SPLITTERS:
            raise InvalidRequest(f"splitter={self.splitter!r}; use one of {', '.join(sorted(SPLITTERS))}")
        if self.stemmer is not None and self.stemmer not in Stemmer.algorithms():
            allowed = ", ".join(sorted(Stemmer.algorithms()))
            raise InvalidRequest(f"stemmer={self.stemmer!r}; use null or one of {allowed}")

    @classmethod
    def for_language(cls, language: str) -> Tokenizer:
        """With the stemmer and the stop words of one of `languages()`; "none" leaves every word as it is.

        Raises:
            InvalidRequest: an unknown language.
        """
        stemmer, stop_words = stemmer_and_stop_words(language)
        return cls(stop_words=stop_words, stemmer=stemmer)

    def words(self, texts: Iterable[str]) -> Iterator[list[Word]]:
        """The words of each text, in its order. Lazy: a corpus may be streamed through."""
        find = SPLITTERS[self.splitter].words.findall
        cutter = WordCutter(self)  # each distinct word is cut and stemmed once per call
        for text in texts:
            yield [cutter[word] for word in find(normal_form(text))]

    def terms(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """The terms of each text, in the order of the text, repeated as often as they occur. Lazy."""
        for words in self.words(texts):
            yield [term for word in words for term in word.terms]

    def settings(self) -> dict[str, Any]:
        """What `from_settings` needs to make an equal tokenizer, as JSON."""
        return {
            "version": TOKENIZER_VERSION,
            "splitter": self.splitter,
            "stop_words": list(self.stop_words),
            "stemmer": self.stemmer,
            "probe": self.probe(),
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, rebuild: bool = False) -> Tokenizer:
        """The tokenizer that `settings()` described.

        With `rebuild` the same choices by this release's rules, whatever version and stemmer cut before: for
        cutting all texts again.

        Raises:
            UnsupportedFormat: this release cuts by other rules, or PyStemmer stems differently than then.
            InvalidRequest: a name in it is not registered in this release.
        """
        version = settings.get("version")
        if version != TOKENIZER_VERSION and not rebuild:
            raise UnsupportedFormat(
                f"texts were cut by tokenizer version {version!r}; this release has {TOKENIZER_VERSION}: "
                + _REBUILD
            )
        tokenizer = cls(settings["splitter"], tuple(settings["stop_words"]), settings["stemmer"])
        if not rebuild and settings["probe"] != tokenizer.probe():
            raise UnsupportedFormat(
                f"the {tokenizer.stemmer} stemmer of PyStemmer {Stemmer.version()} gives other terms than "
                f"the one that cut these texts; install that version of PyStemmer, or {_REBUILD}"
            )
        return tokenizer

    def probe(self) -> str:
        """SHA-256 of the terms of a fixed sentence, in hex."""
        return hashlib.sha256("\n".join(next(self.terms([PROBE]))).encode()).hexdigest()


class WordCutter(dict[str, Word]):
    """A word of a text in normal form → the word, cut. Belongs to one thread, as PyStemmer's objects do."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._pieces = SPLITTERS[tokenizer.splitter].pieces
        self._stem = Stemmer.Stemmer(tokenizer.stemmer, 0).stemWord if tokenizer.stemmer else str
        self._stop_words = frozenset(tokenizer.stop_words)

    def __missing__(self, word: str) -> Word:
        terms: list[str] = []
        spans: list[tuple[int, int]] = []
        leaves: list[str] = []
        pieces = self._pieces(word)
        for start, end, leaf in pieces:
            lower = word[start:end].lower()
            silent = end - start < 2 or lower in self._stop_words
            symbol = _SILENT + lower if silent else self._stem(lower)
            if not silent:
                terms.append(symbol)
                spans.append((start, end))
            if leaf:
                leaves.append(symbol)
        whole = terms[0] if terms and len(pieces) > 1 and spans[0] == (0, len(word)) else None
        self[word] = cut = Word(tuple(terms), tuple(spans), tuple(leaves), whole)
        return cut


def normal_form(text: str) -> str:
    """NFKC: what looks alike is written alike ("ﬁ" and "fi", one "é" and the other)."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


# Inflected words, one or more for each of Snowball's languages: a changed stemmer changes some of them.
PROBE = """
The generalizations of conditional nationalities were hopping happily, skies dying, csv.DictReader read_csv
Häuser gegangenen Möglichkeiten · continuellement majestueusement · nacionalidades corriendo · nazionalità
abbandonarono · nacionalismos · lichamelijkheden · undervisningerne · håndværkerne · jaktkarlarnes
kirjoittajille házaiknak megkelkáposztásítottalanítottam · copiilor naționalităților ·
çekoslovakyalılaştıramadıklarımızdan
национальностями бегающий · зависностима · αυτοκινητοβιομηχανία τραγουδήσαμε · հայաստանցիների
المكتبات والمدرسون · लड़कियों किताबों · केटाहरूलाई घरहरू · மரங்களில் புத்தகங்கள்
ספרייה שפּראַכן · etxeetako liburuak · cantàvem bellíssimes
nejnevinnějšího městech · kalbininkams knygomis · mempermainkan pembelajarannya · bhfionnadh leabharlanna
najpiękniejszych książkami · raamatutesse majadest · dibuka basadi mosadinyana · lernejojn belajn
کتاب‌ها می‌روند
""".strip()
