"""Convert a record (a JSON object, a row of a table) to a document, or reject it.

CSV writes numbers and booleans as text. A column is a number if each of its cells in the first 1,000 rows is
empty or a number as JSON writes it (`7`, `-1.5`, `2e3`; not `007`, `1,5`, `+3`), a boolean if each is empty,
`true` or `false`, otherwise text. A later cell that does not fit stays text. An empty cell of a number or
boolean column is an absent field.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import orjson

from dsearch.errors import InvalidRequest
from dsearch.types import Document, EmbeddedDocument

ID_FIELDS = ("_id", "id")
TITLE_FIELDS = ("title",)
TEXT_FIELDS = ("text", "contents", "body")
VALUE_FIELDS = ("value",)

_CONTENT_ID = re.compile(r"(sha256-[0-9a-f]{32})(?:-[0-9]+)?")

Place: TypeAlias = tuple[int, Document]
"""First line of a document (its row from 1 in files without lines), and the document."""


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Names of the fields with id, title, text and value, and declared types of others.

    None stands for the first existing one of `_id`, `id`; of `title`; of `text`, `contents`, `body`; of
    `value`. A field of embeddings is one only if it is named. A field with a declared type is converted to
    it; see `typed`. With `whole`, a record without a text has all other values as its text.
    """

    id: str | None = None
    title: str | None = None
    text: str | None = None
    value: str | None = None
    embedding: str | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    whole: bool = False

    def of(self, names: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
        """Return the fields of id, title and text among `names`; None for a missing one."""
        return (
            _first(names, self.id, ID_FIELDS),
            _first(names, self.title, TITLE_FIELDS),
            _first(names, self.text, TEXT_FIELDS),
        )

    def remark_on(self, names: list[str]) -> str | None:
        """Return what a reader should know of columns of these names: that none is an id; else None."""
        if self.of(dict.fromkeys(names))[0] is not None:
            return None
        usual = " or ".join(reversed(ID_FIELDS))
        return (
            f"no column {usual}, so the ids of its rows are digests of title and text, and a row whose text "
            f"changes is a new document; name a column with --id-column: {', '.join(names)}"
        )

    def ids_of(self, record: Mapping[str, Any]) -> set[str]:
        """Return the id of a record that need not be a document: its own, else that of its content."""
        id_field, title_field, text_field = self.of(record)
        try:
            identity = None if id_field is None else _id(record[id_field])
            if identity is None:
                identity = content_id(_text(record, title_field), _text(record, text_field))
        except BadRecord:
            return set()
        return {identity}

    def value_of(self, names: Mapping[str, Any]) -> str | None:
        """Return the field of the value among `names`; None if missing."""
        return _first(names, self.value, VALUE_FIELDS)

    def complaint_about(self, names: list[str]) -> str | None:
        """Return why columns of these names are not documents; None if they are."""
        for wanted in (self.id, self.title, self.text, self.value, self.embedding):
            if wanted is not None and wanted not in names:
                return f"no column {wanted!r}; the header has {names}"
        if self.of(dict.fromkeys(names))[2] is None and not self.whole and self.embedding is None:
            usual = ", ".join(TEXT_FIELDS)
            return f"no column {usual}; the header has {names}: name one with --text-column"
        return None


class BadRecord(Exception):
    """A record that is not a document; readers add the file, and the line if `line` is None."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def to_document(record: Mapping[str, Any], fields: RecordFields) -> Document:
    """Convert a record to a document.

    `value` is a number or a list of numbers, in a table's cell also as JSON (`[0.5, 1]`). All other fields
    become metadata; entries of an object `metadata` join them and take precedence. A record without id gets
    one from its content (`content_id`), so reading the same file again gives the same documents; readers
    number those of equal content.

    Raises:
        BadRecord: an id that is neither text nor a whole number, a title or text of another type, neither of
            them without id and embedding, a value that is not finite numbers, or an embedding that is no
            list of them.
    """
    id_field, title_field, text_field = fields.of(record)
    title = _text(record, title_field)
    text = _text(record, text_field)
    if text_field is None and fields.text is not None:
        raise BadRecord(f"no field {fields.text!r}; there are {_listed(record)}")
    value_field = fields.value_of(record)
    used = {id_field, title_field, text_field, value_field, fields.embedding}
    metadata = {name: value for name, value in record.items() if name not in used}
    if text_field is None and fields.whole:
        text = "\n".join(str(value) for value in metadata.values() if isinstance(value, str | int | float))
    embedding = None if fields.embedding is None else _embedding(record, fields.embedding)
    identity = _id(record[id_field]) if id_field is not None else None
    if not title.strip() and not text.strip() and (embedding is None or identity is None):
        if embedding is not None:
            raise BadRecord("neither id nor text: give the record an id, its embedding makes none")
        if text_field is None and title_field is None:
            raise BadRecord(
                f"no text: expected one of the fields {', '.join(TEXT_FIELDS)}, found {_listed(record)}; "
                "name the field that holds the text"
            )
        raise BadRecord("empty: neither title nor text says anything")
    value = None if value_field is None else _value(record[value_field])
    nested = metadata.get("metadata")
    if nested is None:
        metadata.pop("metadata", None)
    elif isinstance(nested, Mapping):
        del metadata["metadata"]
        metadata |= nested
    for name in fields.types.keys() & metadata.keys():
        metadata[name] = typed(metadata[name], fields.types[name])
    id = content_id(title, text) if identity is None else identity
    if embedding is None:
        return Document(id, text, title, metadata, value)
    return EmbeddedDocument(id, text, title, metadata, value, embedding=embedding)


def content_id(title: str, text: str) -> str:
    """Derive the id of a document without one: `sha256-` and 32 hexadecimal digits of title and text."""
    content = f"{title}\0{text}".encode(errors="surrogatepass")
    return f"sha256-{hashlib.sha256(content).hexdigest()[:32]}"


def numbered(id: str, number: int) -> str:
    """Return the id of the document of this number, from 1, among those with equal title and text."""
    return id if number == 1 else f"{id}-{number}"


class ContentNumbers:
    """Further numbers of documents with equal content, for ids that are taken."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def free(self, id: str, is_taken: Callable[[str], bool]) -> str:
        """Return the id of lowest number that is not taken, among those of the same content."""
        base = content_id_in(id) or id
        number = self._last.get(base, 1) + 1
        while is_taken(numbered(base, number)):
            number += 1
        self._last[base] = number
        return numbered(base, number)


def has_content_id(document: Document) -> bool:
    """Return True if a document has no id of its own but that of its content, numbered or not."""
    id = content_id_in(document.id)
    return id is not None and id == content_id(document.title, document.text)


def content_id_in(id: str) -> str | None:
    """Return the id of the content in a numbered one; None for an id that is neither."""
    match = _CONTENT_ID.fullmatch(id)
    return None if match is None else match[1]


def plain_json(value: Any) -> Any:
    """Convert a value of a richer format to JSON.

    Times and dates become ISO 8601, durations seconds, decimals numbers, NaN and infinity null; bytes are
    left out of lists and objects.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return plain_json(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain_json(item) for name, item in value.items() if not isinstance(item, bytes)}
    if isinstance(value, list | tuple | set):
        return [plain_json(item) for item in value if not isinstance(item, bytes)]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _first(names: Mapping[str, Any], wanted: str | None, usual: tuple[str, ...]) -> str | None:
    candidates = usual if wanted is None else (wanted,)
    return next((name for name in candidates if name in names), None)


def _id(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return str(value)
    if not isinstance(value, str):
        raise BadRecord(f"id {_excerpt(value)} is neither a text nor a whole number of at most 64 bits")
    if not value.strip():
        raise BadRecord("the id is blank")
    return value


def _text(record: Mapping[str, Any], field: str | None) -> str:
    text = "" if field is None else record[field]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise BadRecord(f"{field} is {_excerpt(text)}; it must be a text")
    return text


def _value(value: Any) -> float | list[float] | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise BadRecord(f"value {_excerpt(value)} is not a list of numbers") from None
    if isinstance(value, list):
        if not value:
            raise BadRecord("value is an empty list; it must be a number or a list of numbers")
        return [_number(item) for item in value]
    return _number(value)


def _embedding(record: Mapping[str, Any], field: str) -> list[float] | None:
    """The embedding of a record; None where there is none: a stored one then stays."""
    if record.get(field) is None or record[field] == "":
        return None
    embedding = _value(record[field])
    if not isinstance(embedding, list):
        raise BadRecord(f"{field} is {_excerpt(record[field])}; it must be a list of numbers")
    return embedding


def _number(value: Any) -> float:
    """Convert to a finite float; text too, since cells of a table are text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadRecord(f"value {_excerpt(value)} is not a finite number or a list of them")
    return number


def _excerpt(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:  # a list of lists in the cell of a table
        return f"a {type(value).__name__} that nests too deep"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(record: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, record)) if record else "none at all"


ColumnType = Literal["text", "number", "boolean"]

DECIDING_ROWS = 1000
_DECIDING_CHARACTERS = 1 << 22  # of all cells: rows may be long

_KINDS: dict[str, ColumnType] = {"text": "text", "number": "number", "boolean": "boolean"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


def parse_types(texts: Iterable[str]) -> dict[str, ColumnType]:
    """Parse declarations `price=number`.

    Raises:
        InvalidRequest: no type, or an unknown one.
    """
    types: dict[str, ColumnType] = {}
    for text in texts:
        name, _, wanted = text.rpartition("=")
        kind = _KINDS.get(wanted)
        if not name or kind is None:
            raise InvalidRequest(f"type {text!r}; use COLUMN=TYPE with one of {', '.join(_KINDS)}")
        types[name] = kind
    return types


def typed(value: Any, kind: ColumnType) -> Any:
    """Convert a value to a declared type; one that does not fit is returned unchanged."""
    if kind == "text":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return str(value) if is_number else value
    if not isinstance(value, str):
        return value
    cell = value.strip()
    if not cell:
        return None
    if kind == "boolean":
        return _BOOLEANS.get(cell.lower(), value)
    number = _number_in(cell)
    return value if number is None else number


def typed_rows(
    rows: Iterable[tuple[int, dict[str, str]]], declared: Mapping[str, ColumnType], untyped: set[str | None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Convert the cells of a table by the types of its columns.

    Args:
        rows: number and cells of each row, by column.
        declared: types of columns that are not decided by their cells.
        untyped: columns that stay text: id, title, text and value.
    """
    first: list[tuple[int, dict[str, str]]] = []
    characters = 0
    rest = iter(rows)
    for number, row in rest:
        first.append((number, row))
        characters += sum(map(len, row.values()))
        if len(first) == DECIDING_ROWS or characters > _DECIDING_CHARACTERS:
            break
    columns = first[0][1] if first else {}
    types: dict[str, ColumnType] = {
        column: declared.get(column) or _type_of(row[column] for _, row in first)
        for column in columns
        if column not in untyped
    }
    converted: dict[str, ColumnType] = {column: kind for column, kind in types.items() if kind != "text"}
    for number, row in _chain(first, rest):
        record: dict[str, Any] = dict(row)
        for column, kind in converted.items():
            value = typed(record[column], kind)
            if value is None:
                del record[column]
            else:
                record[column] = value
        yield number, record


def _chain(
    first: list[tuple[int, dict[str, str]]], rest: Iterator[tuple[int, dict[str, str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    yield from first
    first.clear()
    yield from rest


def _type_of(cells: Iterable[str]) -> ColumnType:
    possible: set[ColumnType] = {"number", "boolean"}
    empty = True
    for cell in map(str.strip, cells):
        if not cell:
            continue
        empty = False
        if cell.lower() not in _BOOLEANS:
            possible.discard("boolean")
        if _number_in(cell) is None:
            possible.discard("number")
        if not possible:
            return "text"
    return "text" if empty else possible.pop()


def _number_in(cell: str) -> int | float | None:
    match = _NUMBER.fullmatch(cell)
    if match is None or len(cell) > 32:
        return None
    if match[1] is None and match[2] is None:
        whole = int(cell)
        return whole if -(2**63) <= whole < 2**63 else None
    number = float(cell)
    return number if abs(number) != float("inf") else None
