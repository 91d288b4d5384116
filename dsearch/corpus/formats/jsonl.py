"""JSON lines: one object, one document a line; and arrays of such objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import orjson

from dsearch.corpus import strict_json
from dsearch.corpus.formats.lines import ByteStream, Problems, decoded, decoded_lines
from dsearch.corpus.records import ID_FIELDS, BadRecord, Place, RecordFields, to_document

_STRING = r'"(?:[^"\\]|\\.)*"'
_MEMBER = re.compile(rf"({_STRING})\s*:\s*({_STRING}|-?[0-9]+)")
_BETWEEN = " \t\r\n,"  # two elements of an array


def read_jsonl(stream: ByteStream, name: str, problems: Problems, fields: RecordFields) -> Iterator[Place]:
    """Yield the documents of a stream of JSON lines; blank lines are skipped, bad ones are problems."""
    lines = decoded_lines(stream, name, problems, partial(_possible_ids, fields))
    return documents_of_lines(lines, name, problems, fields)


def documents_of_lines(
    lines: Iterable[tuple[int, str]], name: str, problems: Problems, fields: RecordFields
) -> Iterator[Place]:
    """Yield the documents of decoded lines."""
    objects = json_objects(lines, name, problems, partial(_possible_ids, fields))
    return _documents_of(objects, name, problems, fields)


def documents_of_array(
    raw: bytes, name: str, problems: Problems, fields: RecordFields
) -> Iterator[Place] | None:
    """Yield the documents of a JSON array of objects, by their number from 1.

    None if it is other JSON, or no JSON: an array whose objects have no field of a text. Where some have one,
    the others are problems, as those are that `strict_json` rejects. Text is decoded as that of files.
    """
    ambiguous = False
    try:
        text, _ = decoded(raw)
        try:
            records = strict_json.parse(text)
        except strict_json.AmbiguousJson:
            records, ambiguous = orjson.loads(text), True
    except (BadRecord, orjson.JSONDecodeError):
        return None
    if not isinstance(records, list) or not records:
        return None
    if not all(isinstance(record, dict) for record in records):
        return None
    if all(fields.of(record)[2] is None for record in records):
        return None
    if ambiguous:  # one of them at least, which is told by its number
        return documents_of_lines(_elements(text, name, problems), name, problems, fields)
    return _documents_of(enumerate(records, start=1), name, problems, fields)


def _documents_of(
    records: Iterable[tuple[int, dict[str, Any]]], name: str, problems: Problems, fields: RecordFields
) -> Iterator[Place]:
    for number, record in records:
        try:
            yield number, to_document(record, fields)
        except BadRecord as error:
            problems.add(name, number, str(error), skipped=fields.ids_of(record))


def _possible_ids(fields: RecordFields, line: str) -> set[str]:
    """Return the ids that a line may have which is not JSON, or of which a name stands twice."""
    ids: set[str] = set()
    names = ID_FIELDS if fields.id is None else (fields.id,)
    for match in _MEMBER.finditer(line):
        try:
            name, value = orjson.loads(match[1]), orjson.loads(match[2])
        except orjson.JSONDecodeError:
            continue
        if name in names:
            ids |= fields.ids_of({name: value})
    return ids


def _elements(array: str, name: str, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield number from 1 and text of each element of an array that is valid JSON."""
    decoder, at, number = json.JSONDecoder(), array.index("[") + 1, 0
    while True:
        while array[at] in _BETWEEN:
            at += 1
        if array[at] == "]":
            return
        number += 1
        start = at
        try:
            at = decoder.raw_decode(array, start)[1]
        except RecursionError:
            problems.add(name, number, "nests too deep; nothing from here on is read")
            return
        yield number, array[start:at]


def json_objects(
    lines: Iterable[tuple[int, str]],
    name: str,
    problems: Problems,
    ids_of: Callable[[str], Iterable[str]] = lambda _line: (),
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of every non-blank line; `ids_of` as for `decoded_lines`."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = strict_json.parse(line)
        except strict_json.AmbiguousJson as error:
            problems.add(name, number, str(error), skipped=ids_of(line))
            continue
        except orjson.JSONDecodeError as error:
            problems.add(name, number, _malformed(line, error), skipped=ids_of(line))
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            message = f"{_KINDS[type(record)]}; each line must be an object {{…}}"
            problems.add(name, number, message, skipped=())


_KINDS = {
    list: "a JSON array",
    str: "a JSON string",
    int: "a JSON number",
    float: "a JSON number",
    bool: "a JSON true or false",
    type(None): "a JSON null",
}


def _malformed(line: str, error: orjson.JSONDecodeError) -> str:
    reason = str(error).split(": line 1 column")[0]
    hint = ""
    if re.match(r"-?(NaN|Infinity|inf|nan)", line[error.pos :]):
        hint = " (JSON has no NaN and no Infinity: write null or leave the field out)"
    elif error.pos == 0 and line.lstrip().startswith("["):
        hint = " (one object a line, not one array over many lines)"
    return f"malformed JSON at column {error.pos + 1}: {reason}{hint}"
