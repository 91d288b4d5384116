"""CSV and TSV: a header with the names of the columns, then one document a row."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator

from dsearch.corpus.columns import typed_rows
from dsearch.corpus.formats.decoding import SAMPLE, detected
from dsearch.corpus.formats.lines import ByteStream, Problems, beginning, raw_lines
from dsearch.corpus.records import BadRecord, Place, RecordFields, to_document
from dsearch.errors import amount

DELIMITERS = ",;\t"
LONGEST_CELL = 2**31 - 1  # Python's limit of 131,072 characters is shorter than many documents


def read_csv(stream: ByteStream, name: str, problems: Problems, fields: RecordFields) -> Iterator[Place]:
    """Yield the documents of a table. Columns other than id, title, text, value become metadata.

    The delimiter is the most frequent of `,`, `;` and tab in the header. Cells in double quotes may contain
    delimiters, line ends and doubled quotes. Numbers and booleans are typed by column (`corpus/columns.py`).
    A row that does not fit the header or violates quoting is a problem with its first line, and so is one
    that is not UTF-8, unless the file's beginning shows another encoding (`decoding.py`).
    """
    start, stream = beginning(stream, SAMPLE)
    lines = _Lines(stream, name, problems, None if _is_utf8(start) else detected(start))
    csv.field_size_limit(LONGEST_CELL)
    header_line = next(lines, "")
    delimiter = max(DELIMITERS, key=header_line.count)
    try:
        header = [column.strip() for column in next(csv.reader([header_line], delimiter=delimiter), [])]
    except csv.Error as error:  # a line end of old Macs, `\r`
        problems.add(name, 1, f"broken header: {error}")
        return
    complaint = _wrong_header(header, fields)
    if complaint:
        problems.add(name, 1, complaint)
        return
    if (remark := fields.remark_on(header)) is not None:
        problems.remark(name, remark)
    special = {*fields.of(dict.fromkeys(header)), fields.value_of(dict.fromkeys(header)), fields.embedding}
    rows = _rows(lines, header, delimiter, name, problems, fields)
    for begin, record in typed_rows(rows, fields.types, special):
        try:
            yield begin, to_document(record, fields)
        except BadRecord as error:
            problems.add(name, begin, str(error), skipped=fields.ids_of(record))


def _rows(
    lines: _Lines, header: list[str], delimiter: str, name: str, problems: Problems, fields: RecordFields
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the first line and the cells of each row that fits the header."""
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        begin = lines.number + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            cells = [cell.strip('"') for cell in lines.last.rstrip("\r\n").split(delimiter)]
            # A quote that is not closed takes in the rows behind it: any of them may be what is skipped.
            skipped = _possible_ids(header, cells, fields) if lines.number == begin else None
            problems.add(name, begin, f"broken row: {error}", skipped=skipped)
            continue
        if row is None:
            return
        if not row:
            continue
        try:
            yield begin, _record(header, row)
        except BadRecord as error:
            problems.add(name, begin, str(error), skipped=_possible_ids(header, row, fields))


def _possible_ids(header: list[str], row: list[str], fields: RecordFields) -> set[str]:
    """Return the ids that a row with cells too many or too few may have, whichever end they are at."""
    from_left = dict(zip(header, row, strict=False))
    from_right = dict(zip(reversed(header), reversed(row), strict=False))
    return fields.ids_of(from_left) | fields.ids_of(from_right)


def _is_utf8(start: bytes) -> bool:
    """True if the bytes are UTF-8, but for a last character that is cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True


class _Lines(Iterator[str]):
    """Yield lines with line ends, for the csv module, and keep the last one and its number.

    Bytes that are not UTF-8 become lone surrogates and are rejected with their row: dropping the line here
    could split a quoted cell.
    """

    def __init__(self, stream: ByteStream, name: str, problems: Problems, encoding: str | None) -> None:
        self.number = 0
        self.last = ""
        self._encoding = encoding
        self._lines = raw_lines(stream, name, problems)

    def __next__(self) -> str:
        self.number, raw = next(self._lines)
        self.last = self._decoded(raw)
        return self.last

    def _decoded(self, raw: bytes) -> str:
        if self._encoding is not None:
            try:
                return raw.decode(self._encoding)
            except UnicodeDecodeError:
                pass
        return raw.decode("utf-8", errors="surrogateescape")


def _record(header: list[str], row: list[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise BadRecord(f"{amount(len(row), 'cell')}, but the header has {amount(len(header), 'column')}")
    for column, cell in zip(header, row, strict=True):
        if not cell.isascii() and any("\ud800" <= character <= "\udfff" for character in cell):
            raise BadRecord(f"column {column!r} is not UTF-8; save the file as UTF-8")
    return dict(zip(header, row, strict=True))


def _wrong_header(header: list[str], fields: RecordFields) -> str | None:
    names = dict.fromkeys(header)
    if not header:
        return "empty; a table begins with a header that names its columns"
    if len(names) != len(header):
        return f"the header names a column twice: {header}"
    return fields.complaint_about(header)
