"""Tokenize text to terms, in the same way for documents and queries.

A text is brought to Unicode's compatibility form (NFKC) and split into words; a word is lower-cased and
stemmed (Snowball, through PyStemmer), and an identifier also yields its parts. Stop words and single
characters are no terms: they are *silent* and match only inside a phrase.

`settings()` describe a tokenizer completely and are stored beside every keyword index: a query is always
tokenized like the documents. They include a version of the rules in this module and a probe, the digest of a
fixed sentence's terms, which detects a stemmer that stems differently.

A language consists of a Snowball stemmer and stop words, those too frequent to distinguish documents.

The stop words are the lists of bm25s (English: Lucene's 33). A language without a list keeps all its words.

Identifiers are split into parts beside their whole form:

    csv.DictReader   csv.dictreader   csv   dictreader   dict   reader
    read_csv         read_csv         read  csv
    HTTPServer2      httpserver2      http  server2      server 2
    p53, base64      p53, base64      a word with digits is split only inside a longer identifier
    RNAs, e.g., 0.5  rnas; nothing; nothing: no identifiers (single characters are no terms)

A *leaf* is a piece that is not split further. The leaves of a text, in order, are the text, so phrases are
searched in leaves. Offsets count characters.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import bm25s.stopwords as lists
import Stemmer

from dsearch.errors import InvalidRequest, UnsupportedFormat

# Stored with each index; incremented by every change of the rules that changes the terms of some text.
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
# Older or experimental algorithms of a language with another one.
_VARIANTS = {"porter", "dutch_porter", "lovins"}


def languages() -> tuple[str, ...]:
    """Names that `Tokenizer.for_language` accepts, sorted: Snowball's languages and "none"."""
    return tuple(sorted({*Stemmer.algorithms(), NO_LANGUAGE} - _VARIANTS))


def stemmer_and_stop_words(language: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the Snowball algorithm and the stop words of a language; neither for "none".

    Raises:
        InvalidRequest: not one of `languages()`.
    """
    if language not in languages():
        raise InvalidRequest(f"language={language!r}; use one of {', '.join(languages())}")
    if language == NO_LANGUAGE:
        return None, ()
    return language, tuple(_STOP_WORDS.get(language, ()))


# `re` excludes vowel signs and accents from word characters, but words of Hindi and Tamil contain them.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u0900-\u0963\u0966-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e"
)
_NAME = re.compile(rf"\w[\w{_MARKS}]*(?:\.\w[\w{_MARKS}]*)*")
_PLAIN = re.compile(r"\w\w+")
# Patterns of a word's shape: U upper case, s and l lower case (s ends an acronym's plural: RNAs), D digit.
_HUMP = re.compile(r"UU+s(?![ls])|U+(?=U[ls])|U?[ls]+D*|U+D*|D+")


class Piece(NamedTuple):
    """Stretch [start, end) of a word; a leaf is not split further."""

    start: int
    end: int
    leaf: bool


class Splitter(NamedTuple):
    """Rules for splitting: `words` finds the words of a text, `pieces` splits one, the whole form first."""

    words: re.Pattern[str]
    pieces: Callable[[str], list[Piece]]


def whole(word: str) -> list[Piece]:
    """Return the word unchanged."""
    return [Piece(0, len(word), True)]


def parts(word: str) -> list[Piece]:
    """Return the word and, for an identifier, its parts; each piece once, in the order of the text."""
    if word.isalpha() and (word.islower() or word[1:].islower()):
        return whole(word)
    if "." not in word:
        return _component(word, 0)
    components = word.split(".")
    named = all(c[0].isalpha() or c[0] == "_" for c in components) and any(len(c) > 1 for c in components)
    pieces = [Piece(0, len(word), False)] if named else []
    start = 0
    for component in components:
        pieces += _component(component, start)
        start += len(component) + 1
    return pieces


# Registered short names: a stored index names a splitter and never contains a pattern to run.
SPLITTERS = {"identifiers": Splitter(_NAME, parts), "words": Splitter(_PLAIN, whole)}


def _component(text: str, start: int) -> list[Piece]:
    """Return the pieces of a name without dots that begins at `start`."""
    humps = [match.span() for match in _HUMP.finditer(_shape(text))]
    entire = Piece(start, start + len(text), True)
    if len(humps) <= 1:
        if not humps or humps[0] == (0, len(text)):
            return [entire]
        first, last = humps[0]
        return [entire._replace(leaf=False), Piece(start + first, start + last, True)]
    pieces = [entire._replace(leaf=False)]
    for first, last in humps:
        letters = len(text[first:last].rstrip("0123456789"))
        if 0 < letters < last - first:
            pieces.append(Piece(start + first, start + last, False))
            pieces.append(Piece(start + first, start + first + letters, True))
            pieces.append(Piece(start + first + letters, start + last, True))
        else:
            pieces.append(Piece(start + first, start + last, True))
    return pieces


def _shape(text: str) -> str:
    return "".join(map(_kind, text))


def _kind(character: str) -> str:
    if character == "_" or character == "s":
        return character
    if character.isupper():
        return "U"
    return "D" if character in "0123456789" else "l"


TOKENIZER_VERSION = 1

_SILENT = " "  # begins the symbol of a silent word: no term begins with a blank
_REBUILD = "build the generation again"


class Word(NamedTuple):
    """Tokenized word.

    Attributes:
        terms: terms to count: the whole form, then an identifier's parts.
        spans: [start, end) of each term in the word.
        leaves: the word as a sequence of symbols, for phrases: a term, or a blank and a silent word.
        whole: the whole form if the word also has parts, else None.
    """

    terms: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    leaves: tuple[str, ...]
    whole: str | None


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Splits texts into terms. Equal tokenizers give equal terms; instances are immutable and safe to share.

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
        """Create a tokenizer with the stemmer and stop words of a language; "none" leaves words unchanged.

        Raises:
            InvalidRequest: an unknown language.
        """
        stemmer, stop_words = stemmer_and_stop_words(language)
        return cls(stop_words=stop_words, stemmer=stemmer)

    def words(self, texts: Iterable[str]) -> Iterator[list[Word]]:
        """Yield the words of each text, in order; lazy, so a corpus can be streamed."""
        find = SPLITTERS[self.splitter].words.findall
        cutter = WordCutter(self)  # each distinct word is split and stemmed once per call
        for text in texts:
            yield [cutter[word] for word in find(normal_form(text))]

    def terms(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Yield the terms of each text, in order and with repetitions; lazy."""
        for words in self.words(texts):
            yield [term for word in words for term in word.terms]

    def settings(self) -> dict[str, Any]:
        """JSON settings from which `from_settings` creates an equal tokenizer."""
        return {
            "version": TOKENIZER_VERSION,
            "splitter": self.splitter,
            "stop_words": list(self.stop_words),
            "stemmer": self.stemmer,
            "probe": self.probe(),
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, rebuild: bool = False) -> Tokenizer:
        """Create the tokenizer that `settings()` describes.

        With `rebuild`, the same settings are applied with this release's rules and stemmer, to tokenise all
        texts again.

        Raises:
            UnsupportedFormat: the rules of this release or the stemmer of PyStemmer differ from those used.
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
    """Cache: normalised word → tokenized word. For one thread only, as PyStemmer requires."""

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
    """Normalise a text to NFKC, so that equivalent characters are equal ("ﬁ" and "fi", both forms of "é")."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


# Inflected words of each of Snowball's languages: a changed stemmer changes some of them.
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
