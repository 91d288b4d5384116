"""The language of a collection: how its texts are cut into terms for BM25, and where that is remembered.

A generation's record in the store names it, so the next one is cut alike; older ones, from before there was a
choice, are English.
"""

from __future__ import annotations

from dsearch.errors import Conflict
from dsearch.index import Tokenizer
from dsearch.store import Store

ENGLISH = "english"


def language_of(store: Store) -> str:
    """The language that the live generation was built with."""
    live = store.live_generation()
    return ENGLISH if live is None else live.record.get("language", ENGLISH)


def tokenizer_for(language: str) -> Tokenizer:
    """Cuts texts of a language, or of "none", as every generation of a collection does.

    Raises:
        InvalidRequest: not one of `dsearch.index.languages()`.
    """
    return Tokenizer.for_language(language)


def require_language(store: Store, language: str | None) -> None:
    """Refuse another language than a collection has; None asks for none.

    Raises:
        Conflict: says which it has.
    """
    if language not in (None, language_of(store)):
        raise Conflict(
            f"language={language!r}; collection {store.name!r} was made for {language_of(store)!r}: leave it "
            "out, or index into another collection"
        )
