"""Languages of keyword search: stemmers, stop words of bm25s, and the language of a text among several.

A language consists of a Snowball stemmer and stop words, those too frequent to distinguish documents. The
stop words are the lists of bm25s (English: Lucene's 33). A language without a list keeps all its words.

The language of a text is found by py3langid (extra `multilingual`): a naive Bayes classifier over n-grams of
bytes (Lui & Baldwin 2012, "langid.py"). A document has the most probable language; a query, which is short,
may have several.

Where JAX is installed, bm25s runs it once while it is imported, which starts it: on a machine with a GPU it
then holds three quarters of the GPU's memory for as long as the process lives, and dsearch has no use for it.
So bm25s is imported by `import_bm25s`.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from functools import cache
from types import ModuleType
from typing import Any

import Stemmer

from dsearch.errors import InvalidRequest, MissingExtra

# Lucene's 33 (`EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`), which bm25s has as well.
ENGLISH_STOP_WORDS = (
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
    "this", "to", "was", "will", "with",
)  # fmt: skip

NO_LANGUAGE = "none"
ANY_LANGUAGE = "auto"

# Older or experimental algorithms of a language with another one.
_VARIANTS = {"porter", "dutch_porter", "lovins"}

# Codes of the classifier. Yiddish has none.
_CODES = {
    "arabic": "ar", "armenian": "hy", "basque": "eu", "catalan": "ca", "czech": "cs", "danish": "da",
    "dutch": "nl", "english": "en", "esperanto": "eo", "estonian": "et", "finnish": "fi", "french": "fr",
    "german": "de", "greek": "el", "hindi": "hi", "hungarian": "hu", "indonesian": "id", "irish": "ga",
    "italian": "it", "lithuanian": "lt", "nepali": "ne", "norwegian": "no", "persian": "fa", "polish": "pl",
    "portuguese": "pt", "romanian": "ro", "russian": "ru", "serbian": "sr", "sesotho": "st",
    "spanish": "es", "swedish": "sv", "tamil": "ta", "turkish": "tr",
}  # fmt: skip
# Short texts are often mistaken for one of these; named together with others they are detected as well.
_ONLY_BY_NAME = {
    *("basque", "catalan", "esperanto", "estonian", "irish", "lithuanian", "nepali", "serbian", "sesotho"),
}

_READ = 4000  # characters of a text that decide
_PLAUSIBLE = 1 / 3  # of the highest probability
_READINGS = 4

# Written without blanks, or stemmed by none of Snowball's algorithms: found by characters (tokenizer.py).
CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_CJK_RUN = re.compile(rf"[{CJK}]+")


def languages() -> tuple[str, ...]:
    """Names that `Tokenizer.for_language` accepts: Snowball's languages, "none" and "auto", sorted."""
    return tuple(sorted({*Stemmer.algorithms(), NO_LANGUAGE, ANY_LANGUAGE} - _VARIANTS))


def stemmer_and_stop_words(language: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the Snowball algorithm and the stop words of a language; neither for "none".

    Raises:
        InvalidRequest: not one of `languages()`, or "auto", which is several.
    """
    if language not in languages() or language == ANY_LANGUAGE:
        raise InvalidRequest(
            f"language={language!r}; use one of {', '.join(languages())}; or several, such as german,english"
        )
    if language == NO_LANGUAGE:
        return None, ()
    return language, _stop_words(language)


def _stop_words(language: str) -> tuple[str, ...]:
    if language == "english":
        return ENGLISH_STOP_WORDS
    return tuple(getattr(import_bm25s(".stopwords"), f"STOPWORDS_{language.upper()}", ()))


def named_languages(language: str) -> tuple[str, ...]:
    """Languages to detect: those of "auto", or of a list such as "german,english"; none for a single one.

    Raises:
        InvalidRequest: a name in the list that is not a language, or that is not detected.
    """
    if language == ANY_LANGUAGE:
        return tuple(name for name in _CODES if name not in _ONLY_BY_NAME)
    names = tuple(dict.fromkeys(name.strip() for name in language.split(",")))
    if len(names) == 1:
        return ()
    return checked_languages(names)


def checked_languages(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, if all can be detected.

    Raises:
        InvalidRequest: the message has the allowed ones.
    """
    for name in names:
        if name not in _CODES:
            raise InvalidRequest(f"language {name!r} in a list; use some of {', '.join(sorted(_CODES))}")
    return names


def language_of_text(text: str, among: tuple[str, ...]) -> str:
    """The most probable language of a text, by its words outside of CJK scripts."""
    return _ranked(text, among)[0][0]


def plausible_languages(text: str, among: tuple[str, ...]) -> list[str]:
    """The languages that a short text may have, most probable first: at least a third as probable as it."""
    ranked = _ranked(text, among)[:_READINGS]
    return [name for name, probability in ranked if probability >= _PLAUSIBLE * ranked[0][1]]


def detector_digest() -> str:
    """SHA-256 of the classifier's parameters: with others, texts may have other languages."""
    return _detector()[1]


def _ranked(text: str, among: tuple[str, ...]) -> list[tuple[str, float]]:
    words = _CJK_RUN.sub(" ", text[:_READ]).strip()
    names = {_CODES[name]: name for name in among}
    return [(names[code], probability) for code, probability in _classifier(among).rank(words)]


@cache
def _classifier(among: tuple[str, ...]) -> Any:
    import copy

    classifier = copy.copy(_detector()[0])
    classifier.set_languages([_CODES[name] for name in among])
    return classifier


@cache
def _detector() -> tuple[Any, str]:
    try:
        from py3langid import langid
    except ImportError as error:
        raise MissingExtra(
            "texts in several languages need py3langid, which is not installed; run "
            "pip install 'dsearch[multilingual]', or name one language"
        ) from error
    file = langid.MODEL_DIR / langid.MODEL_FILE
    classifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    return classifier, hashlib.sha256(file.read_bytes()).hexdigest()


def import_bm25s(submodule: str = "") -> ModuleType:
    """Return bm25s, or a submodule of it; while it is imported for the first time, JAX is as if missing.

    A search needs neither: bm25s brings scipy, so it is imported where an index is built.
    """
    name = "bm25s" + submodule
    if name in sys.modules:
        return sys.modules[name]
    hidden = {each: sys.modules.get(each) for each in ("jax", "jax.lax")}
    try:
        for each in hidden:
            sys.modules[each] = None  # type: ignore[assignment]  # Python's own way to refuse an import
        return importlib.import_module(name)
    finally:
        for each, module in hidden.items():
            if module is None:
                del sys.modules[each]
            else:
                sys.modules[each] = module
