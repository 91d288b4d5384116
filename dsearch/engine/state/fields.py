"""`KeptFields`: fields of documents that were read lately, by row.

A row is one version of a document and never changes, so a field that was read stays as it is, and after a
write only the new rows are read.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from dsearch.attention_options import FIELD_SCORES
from dsearch.declared import suggestion
from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.engine.snapshot import Snapshot
from dsearch.errors import InvalidRequest
from dsearch.store import Store
from dsearch.store.filters import SAMPLE, names_of, parse_field

OWN_FIELDS = ("id", "title", "text")
VALUE = "value"  # the field that is no metadata: `Document.value`
MAX_FIELDS = 4
MAX_BYTES = 64 * 1024 * 1024  # of a field; a larger one is read again each time
_READ_AT_ONCE = 1000


class KeptFields:
    """The fields of one store; for many threads."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()
        self._fields: OrderedDict[tuple[str, bool], dict[int, Any]] = OrderedDict()

    def of(self, rows: Int64[np.ndarray, " rows"], field: str, *, own: bool = False) -> list[Any]:
        """Return a field of each row, None where it is absent.

        Args:
            rows: rows of the store.
            field: dotted path of the metadata, or "value".
            own: whether id, title and text are those of the document, and lists are returned too.

        Raises:
            InvalidRequest: not a field.
            NotFound, CorruptData.
        """
        key = field, own
        with self._lock:
            values = self._fields.get(key, {})
        missing = [row for row in rows.tolist() if row not in values]
        if missing:
            values = values | self._read(missing, field, own=own)
            if len(values) > 2 * len(rows):  # of versions that were replaced since
                values = {row: values[row] for row in rows.tolist()}
            with self._lock:
                self._fields.pop(key, None)
                if sum(map(sys.getsizeof, values.values())) <= MAX_BYTES:
                    self._fields[key] = values
                while len(self._fields) > MAX_FIELDS:
                    self._fields.popitem(last=False)
        return [values[row] for row in rows.tolist()]

    def forget(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._fields.clear()

    def refuse_misspelt(self, field: str) -> None:
        """Refuse a field to compare that no document has if one of a similar name exists.

        Raises:
            InvalidRequest: with the field that may have been meant.
        """
        near = suggestion(field, [*OWN_FIELDS, *names_of(self._store.list(limit=SAMPLE))])
        if near:
            raise InvalidRequest(
                f"match_field={field!r}: no document has this field{near}; use id, title, text or a field of "
                "the metadata"
            )

    def _read(self, rows: Sequence[int], field: str, *, own: bool) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for start in range(0, len(rows), _READ_AT_ONCE):
            part = rows[start : start + _READ_AT_ONCE]
            values.update(zip(part, self._part(np.array(part, np.int64), field, own=own), strict=True))
        return values

    def _part(self, rows: Int64[np.ndarray, " rows"], field: str, *, own: bool) -> Sequence[Any]:
        if not own:
            return fields_of(self._store, rows, field)
        documents = self._store.documents(rows)
        if field in OWN_FIELDS:
            return [getattr(document, field) for document in documents]
        keys = parse_field(field)
        return [_at(document.metadata, keys) for document in documents]


def fields_of(store: Store, rows: Int64[np.ndarray, " rows"], field: str) -> Sequence[Any]:
    """The field of each row, None where it is absent: metadata by a dotted path, or the documents' `value`.

    Raises:
        InvalidRequest: not a field.
    """
    return store.values(rows) if field == VALUE else store.field_values(rows, field)


def _at(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return None if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType]


def with_match(fields: KeptFields, snapshot: Snapshot, options: dict[str, Any]) -> dict[str, Any]:
    """Replace `match_field` and `ignore_case` by the score that compares the field in this snapshot.

    Raises:
        InvalidRequest: not a field, a field for a score that compares vectors.
    """
    from dsearch.attention import SCORES

    plain = {**options}
    field, ignore_case = plain.pop("match_field", None), plain.pop("ignore_case", False)
    score = plain.get("score", "dot")
    names = list(dict.fromkeys([*SCORES, *FIELD_SCORES]))
    if isinstance(score, str) and score not in names:
        raise InvalidRequest(f"score={score!r}; use one of {', '.join(names)}{suggestion(score, names)}")
    if field is not None:
        if score not in FIELD_SCORES:
            raise InvalidRequest(
                f"match_field={field!r} with score={score!r}; only {', '.join(FIELD_SCORES)} compare a field"
            )
        rows = snapshot.rows(np.arange(snapshot.positions))
        values = fields.of(rows, field, own=True)
        if all(value is None for value in values):
            fields.refuse_misspelt(field)
        plain["score"] = FieldMatch(score, field, values, ignore_case=ignore_case)
        plain["mode"] = "dense"  # neither vectors nor keywords have a part
    elif isinstance(score, str) and score in FIELD_SCORES[1:]:
        raise InvalidRequest(
            f"score={score!r} without a field; give match_field: id, title, text or one of the metadata"
        )
    elif ignore_case:
        raise InvalidRequest("ignore_case without match_field, which it is about; give both")
    return plain
