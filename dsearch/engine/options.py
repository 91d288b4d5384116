"""Options of layers, keys and languages of a collection; those of searches are in `dsearch.search_options`.

`LayerOptions` says how a layer searches.

`KeyOptions` says how the keys of a generation are stored. The generation's record in the store contains them,
so the next generation is built with the same options unless others are requested.

Search fields are metadata fields whose strings keyword search has as further words of a document, no part of
its embedding. The record names them, too.

The language of a collection decides how texts are split into terms for BM25. The generation's record names it
too; records older than that option mean English.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from dsearch.attention_options import AttentionKeywords, SelectionKeywords
from dsearch.errors import Command, Conflict, InvalidRequest, amount
from dsearch.index import DENSE_KINDS, Tokenizer
from dsearch.index.dense.kinds import AUTO
from dsearch.index.dense.tuning import RECALL_TARGET
from dsearch.search_options import SearchKeywords
from dsearch.store import Store
from dsearch.store.filters import parse_field
from dsearch.store.reader import Rows
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.attention import Score


EVIDENCE = 10  # documents that a prediction names


class LayerOptions(AttentionKeywords, SelectionKeywords, total=False):
    """Options described in `Ranker`, with its defaults; a field to match (field_match.py); documents."""

    depth: int | None
    score: str | Score
    stages: int | None
    rerank_candidates: int


class OpenedLayerOptions(LayerOptions, total=False):
    """`LayerOptions`, and filter: condition on the metadata of the documents that a layer attends to."""

    filter: Mapping[str, Any] | None


class SearchArguments(SearchKeywords, total=False):
    """Keyword arguments of `Collection.search`, described by `SearchOptions`, whose defaults hold."""

    fields: str | None
    coverage: bool | None


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Storage options of keys.

    Args:
        kind: a name in `DENSE_KINDS`; "auto" takes the fastest kind that fits and reaches the target.
        recall_target: recall@10 that the parameters of an approximate kind are tuned for.
        memory_bytes: upper bound on the size of the keys when "auto" chooses; None for no bound.

    Raises:
        InvalidRequest: an unknown kind, a target outside 0 to 1, a bound below 1.
    """

    kind: str = "Flat"
    recall_target: float = RECALL_TARGET
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind != AUTO and self.kind not in DENSE_KINDS:
            raise InvalidRequest(f"dense kind {self.kind!r}; use one of {', '.join([*DENSE_KINDS, AUTO])}")
        if not 0 < self.recall_target <= 1:
            raise InvalidRequest(f"recall target {self.recall_target}; use a number above 0, up to 1")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise InvalidRequest(f"memory_bytes={self.memory_bytes}; use 1 or more, or none for no bound")

    @property
    def approximate(self) -> bool:
        """True if the kind, or one that "auto" may take, can miss a neighbour."""
        return self.kind == AUTO or bool(DENSE_KINDS[self.kind].parameters)

    def changed(self, kind: str | None, recall_target: float | None, memory_bytes: int | None) -> KeyOptions:
        """Return a copy with these settings; None keeps the present one."""
        changes = {"kind": kind, "recall_target": recall_target, "memory_bytes": memory_bytes}
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of(cls, store: Store) -> KeyOptions:
        """Return the options of the live generation; the defaults if there is none or it records none."""
        live = store.live_generation()
        stored: dict[str, Any] = {} if live is None else live.record.get("keys", {})
        return cls(**stored)


ENGLISH = "english"


def language_of(store: Store) -> str:
    """Return the language of the live generation."""
    live = store.live_generation()
    return ENGLISH if live is None else live.record.get("language", ENGLISH)


MAX_SEARCH_FIELDS = 16


def search_fields_of(store: Store) -> tuple[str, ...]:
    """Return the metadata fields whose words the live generation searches."""
    live = store.live_generation()
    return () if live is None else tuple(live.record.get("search_fields", ()))


def checked_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Return search fields without repetitions.

    Raises:
        InvalidRequest: not a field, or too many.
    """
    for field in fields:
        parse_field(field)
    if len(fields) > MAX_SEARCH_FIELDS:
        raise InvalidRequest(f"{amount(len(fields), 'search field')}; use at most {MAX_SEARCH_FIELDS}")
    return tuple(dict.fromkeys(fields))


def keyword_text(document: Document, fields: Sequence[str]) -> str:
    """Return the text of a document for keyword search: title and text, then strings of its search fields."""
    words = [value for field in fields for value in _strings(document.metadata, parse_field(field))]
    return "\n".join([document.content, *words])


def keyword_texts(store: Store, rows: Rows) -> list[str]:
    """Return the text of each row for keyword search in the live generation."""
    fields = search_fields_of(store)
    if not fields:
        return store.contents(rows)
    return [keyword_text(document, fields) for document in store.documents(rows)]


def _strings(metadata: Any, keys: Sequence[str]) -> list[str]:
    """Strings at a path, of a string or of a list; other values have no words."""
    for key in keys:
        if not isinstance(metadata, Mapping):
            return []
        metadata = cast("Mapping[str, Any]", metadata).get(key)
    values: list[Any] = cast("list[Any]", metadata) if isinstance(metadata, list) else [metadata]
    return [value for value in values if isinstance(value, str)]


def stop_words_of(store: Store) -> tuple[str, ...]:
    """The words of a collection's language that are no terms."""
    return Tokenizer.for_language(language_of(store)).stop_words


def require_texts(store: Store, language: str | None, fields: Sequence[str] | None) -> None:
    """Check that a collection has this language and these search fields; None accepts any.

    Raises:
        Conflict: the message names its own.
    """
    if fields is not None and set(fields) != set(present := search_fields_of(store)):
        raise Conflict(
            f"search_fields={', '.join(fields)}; collection {store.name!r} searches the fields "
            f"{', '.join(present) or '(none)'}: leave them out, or index into another collection"
        )
    if language not in (None, language_of(store)):
        raise Conflict(
            f"language={language!r}; collection {store.name!r} was made for {language_of(store)!r}: leave it "
            "out, or index into another collection"
        )


def require_kind(store: Store, kind: str | None) -> None:
    """Check that a collection keeps its keys as this kind; None accepts any.

    Raises:
        Conflict: the message names its kind, and the command that changes it.
    """
    if kind is not None and (present := KeyOptions.of(store).kind) != kind:
        raise Conflict(
            f"collection {store.name!r} keeps its keys as {present}, not as {kind}; change that",
            hint=Command("refresh", ("-c", store.name, "--kind", kind)),
        )
