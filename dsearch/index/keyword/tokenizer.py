"""Tokenize text to terms, in the same way for documents and queries.

A text is brought to Unicode's compatibility form (NFKC) and split into words; a word is lower-cased and
stemmed (Snowball, through PyStemmer), and an identifier also yields its parts. Stop words and single
characters are no terms: they are *silent* and match only inside a phrase.

`settings()` describe a tokenizer completely and are stored beside every keyword index: a query is always
tokenized like the documents. They include a version of the rules in this module and a probe, the digest of a
fixed sentence's terms, which detects a stemmer that stems differently.

Stemmer and stop words are those of one language, or of the language of each text among several
(`languages.py`). The language of a query is uncertain: a word of it has a term for each plausible language,
and a phrase a reading. Among several languages, runs of Chinese, Japanese and Korean characters are cut into
single characters and pairs; the single ones are the leaves, so phrases match anywhere in a run.

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
from functools import lru_cache
from typing import Any, NamedTuple

import Stemmer

from dsearch.errors import InvalidRequest, UnsupportedFormat
from dsearch.index.keyword.languages import (
    CJK,
    checked_languages,
    detector_digest,
    language_of_text,
    named_languages,
    plausible_languages,
    stemmer_and_stop_words,
)

# `re` excludes vowel signs and accents from word characters, but words of Hindi and Tamil contain them.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u0900-\u0963\u0966-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e"
)
_NAME = re.compile(rf"\w[\w{_MARKS}]*(?:\.\w[\w{_MARKS}]*)*")
_LETTER = rf"(?![{CJK}])[\w{_MARKS}]"
_NAME_OR_RUN = re.compile(rf"[{CJK}]+|(?![{CJK}])\w(?:{_LETTER})*(?:\.(?![{CJK}])\w(?:{_LETTER})*)*")
_IDEOGRAPH = re.compile(rf"[{CJK}]")
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


def scripts(word: str) -> list[Piece]:
    """Return the parts of a name; of a run of CJK characters each character, and each pair of neighbours."""
    if not _IDEOGRAPH.match(word):
        return parts(word)
    pieces: list[Piece] = []
    for start in range(len(word)):
        pieces.append(Piece(start, start + 1, True))
        if start + 1 < len(word):
            pieces.append(Piece(start, start + 2, False))
    return pieces


# Registered short names: a stored index names a splitter and never contains a pattern to run.
SPLITTERS = {
    "identifiers": Splitter(_NAME, parts),
    "words": Splitter(_PLAIN, whole),
    "scripts": Splitter(_NAME_OR_RUN, scripts),
}


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


# Stored with each index; incremented by every change of the rules that changes the terms of some text.
TOKENIZER_VERSION = 1
SEVERAL_LANGUAGES_VERSION = 2  # the same of tokenizers of several languages, which older releases do not know

_SILENT = " "  # begins the symbol of a silent word: no term begins with a blank
_REBUILD = "build the generation again"


class TokenizedWord(NamedTuple):
    """Tokenized word.

    Attributes:
        terms: terms to count: the whole form, then an identifier's parts.
        spans: [start, end) of each term in the word.
        leaves: the word as a sequence of symbols, for phrases: a term, or a blank and a silent word.
        whole: the whole form if the word also has parts, else None.
        variants: of a query's word, its terms in other languages that the query may have.
    """

    terms: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    leaves: tuple[str, ...]
    whole: str | None
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Splits texts into terms. Equal tokenizers give equal terms; instances are immutable and safe to share.

    Attributes:
        splitter: a name in `SPLITTERS`: "identifiers", "words" to leave identifiers whole, or "scripts" to
            cut runs of CJK characters, too.
        stop_words: lower-case words that are no terms; Lucene's 33 English ones by default.
        stemmer: a Snowball algorithm that PyStemmer knows, or None for no stemming.
        languages: languages of which each text has one; their stop words and stemmers are used then.

    Raises:
        InvalidRequest: an unknown splitter, stemmer or language.
    """

    splitter: str = "identifiers"
    stop_words: tuple[str, ...] = stemmer_and_stop_words("english")[1]
    stemmer: str | None = "english"
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.splitter not in SPLITTERS:
            raise InvalidRequest(f"splitter={self.splitter!r}; use one of {', '.join(sorted(SPLITTERS))}")
        if self.stemmer is not None and self.stemmer not in Stemmer.algorithms():
            allowed = ", ".join(sorted(Stemmer.algorithms()))
            raise InvalidRequest(f"stemmer={self.stemmer!r}; use null or one of {allowed}")
        checked_languages(self.languages)

    @classmethod
    def for_language(cls, language: str) -> Tokenizer:
        """Create a tokenizer with the stemmer and stop words of a language; "none" leaves words unchanged.

        "auto", or a list such as "german,english", takes those of the language of each text.

        Raises:
            InvalidRequest: an unknown language.
            MissingExtra: several languages without the extra `multilingual`.
        """
        if several := named_languages(language):
            detector_digest()
            return cls("scripts", (), None, several)
        stemmer, stop_words = stemmer_and_stop_words(language)
        return cls(stop_words=stop_words, stemmer=stemmer)

    def words(self, texts: Iterable[str]) -> Iterator[list[TokenizedWord]]:
        """Yield the words of each text, in order; lazy, so a corpus can be streamed."""
        find = SPLITTERS[self.splitter].words.findall
        cutters = TokenizerCaches(self)  # each distinct word is split and stemmed once per call and language
        for text in texts:
            normal = normal_form(text)
            cutter = cutters.of(normal)
            yield [cutter[word] for word in find(normal)]

    def query_words(self, query: str) -> list[TokenizedWord]:
        """The words of a query, in order, with their variants; those of a document without several languages.

        A word that is too frequent in the most probable language has no term in the others. Identifiers have
        no variants.
        """
        first, *others = self.readings(query)
        return [
            word._replace(variants=_variants(word, same)) if len(word.terms) == 1 else word
            for word, *same in zip(first, *others, strict=True)
        ]

    def readings(self, query: str) -> list[list[TokenizedWord]]:
        """The words of a query in each language that it may have, the most probable first, each once."""
        normal = normal_form(query)
        names = SPLITTERS[self.splitter].words.findall(normal)
        readings = [[cutter[name] for name in names] for cutter in TokenizerCaches(self).plausible(normal)]
        return [reading for place, reading in enumerate(readings) if reading not in readings[:place]]

    def terms(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Yield the terms of each text, in order and with repetitions; lazy."""
        for words in self.words(texts):
            yield [term for word in words for term in word.terms]

    def settings(self) -> dict[str, Any]:
        """JSON settings from which `from_settings` creates an equal tokenizer."""
        settings = {
            "version": _version(self.languages),
            "splitter": self.splitter,
            "stop_words": list(self.stop_words),
            "stemmer": self.stemmer,
            "probe": self.probe(),
        }
        return {**settings, "languages": list(self.languages)} if self.languages else settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, rebuild: bool = False) -> Tokenizer:
        """Create the tokenizer that `settings()` describes.

        With `rebuild`, the same settings are applied with this release's rules and stemmer, to tokenise all
        texts again.

        Raises:
            UnsupportedFormat: the rules of this release, the stemmer of PyStemmer or the detection of
                languages differ from those used.
            MissingExtra: several languages without the extra `multilingual`.
            InvalidRequest: a name in it is not registered in this release.
        """
        version, several = settings.get("version"), tuple(settings.get("languages", ()))
        if version != _version(several) and not rebuild:
            raise UnsupportedFormat(
                f"texts were cut by tokenizer version {version!r}; this release has {_version(several)}: "
                + _REBUILD
            )
        tokenizer = cls(settings["splitter"], tuple(settings["stop_words"]), settings["stemmer"], several)
        if not rebuild and settings["probe"] != tokenizer.probe():
            if several:
                raise UnsupportedFormat(
                    f"PyStemmer {Stemmer.version()} and the installed py3langid give other terms than those "
                    f"that cut these texts; install their versions, or {_REBUILD}"
                )
            raise UnsupportedFormat(
                f"the {tokenizer.stemmer} stemmer of PyStemmer {Stemmer.version()} gives other terms than "
                f"the one that cut these texts; install that version of PyStemmer, or {_REBUILD}"
            )
        return tokenizer

    def probe(self) -> str:
        """SHA-256 of the terms of a fixed sentence, in hex; of several languages each line is a text."""
        return _probe(self, detector_digest() if self.languages else None, Stemmer.Stemmer)


@lru_cache(maxsize=64)
def _probe(tokenizer: Tokenizer, detector: str | None, stemmer: type) -> str:
    """Take the probe; building and opening a generation ask for the same one several times.

    `stemmer` is part of the key alone: another library's stemmer would give other terms.
    """
    texts = [PROBE] if detector is None else PROBE.split("\n")
    terms = [term for text in tokenizer.terms(texts) for term in text]
    digest = [] if detector is None else [detector]
    return hashlib.sha256("\n".join([*digest, *terms]).encode()).hexdigest()


class TokenizerCaches:
    """Caches of tokenized words, one for each language of a tokenizer. For one thread only."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._by_language: dict[str, WordCutter] = {}

    def of(self, text: str) -> WordCutter:
        """The cache of a text's language."""
        among = self._tokenizer.languages
        return self._cutter(language_of_text(text, among) if among else "")

    def plausible(self, text: str) -> list[WordCutter]:
        """The caches of the languages that a query may have."""
        among = self._tokenizer.languages
        return [self._cutter(name) for name in (plausible_languages(text, among) if among else [""])]

    def _cutter(self, language: str) -> WordCutter:
        cutter = self._by_language.get(language)
        if cutter is None:
            own = self._tokenizer
            if language:
                stemmer, stop_words = stemmer_and_stop_words(language)
                own = Tokenizer(own.splitter, stop_words, stemmer)
            cutter = self._by_language[language] = WordCutter(own)
        return cutter


class WordCutter(dict[str, TokenizedWord]):
    """Cache: normalised word → tokenized word. For one thread only, as PyStemmer requires."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._pieces = SPLITTERS[tokenizer.splitter].pieces
        self._stem = Stemmer.Stemmer(tokenizer.stemmer, 0).stemWord if tokenizer.stemmer else str
        self._stop_words = frozenset(tokenizer.stop_words)
        # A character of a run is a term; a single letter or digit is none.
        self._single = _IDEOGRAPH.match if tokenizer.splitter == "scripts" else _never

    def __missing__(self, word: str) -> TokenizedWord:
        terms: list[str] = []
        spans: list[tuple[int, int]] = []
        leaves: list[str] = []
        pieces = self._pieces(word)
        for start, end, leaf in pieces:
            lower = word[start:end].lower()
            silent = (end - start < 2 and not self._single(lower)) or lower in self._stop_words
            symbol = _SILENT + lower if silent else self._stem(lower)
            if not silent:
                terms.append(symbol)
                spans.append((start, end))
            if leaf:
                leaves.append(symbol)
        whole = terms[0] if terms and len(pieces) > 1 and spans[0] == (0, len(word)) else None
        self[word] = cut = TokenizedWord(tuple(terms), tuple(spans), tuple(leaves), whole)
        return cut


def _never(_: str) -> bool:
    return False


def _variants(word: TokenizedWord, others: list[TokenizedWord]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term for other in others for term in other.terms if term not in word.terms))


def _version(languages: tuple[str, ...]) -> int:
    return SEVERAL_LANGUAGES_VERSION if languages else TOKENIZER_VERSION


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
