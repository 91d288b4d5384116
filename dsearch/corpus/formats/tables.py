"""Tables, one document a row: CSV and TSV with a header, Parquet, Arrow, saved Hugging Face datasets.

A dataset that was saved to disk (`save_to_disk`) is read without the datasets library:

    dataset_dict.json      {"splits": ["train", "test"]}; a folder for each split, of this layout:
    dataset_info.json      what the columns are
    state.json             {"_data_files": [{"filename": "data-00000-of-00001.arrow"}, …], …}
    data-….arrow           Arrow, streaming format
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from dsearch.corpus.formats.lines import (
    SAMPLE,
    ByteStream,
    Problems,
    beginning,
    detected,
    optional,
    raw_lines,
)
from dsearch.corpus.records import BadRecord, Place, RecordFields, plain_json, to_document, typed_rows
from dsearch.errors import InvalidSource, amount

DELIMITERS = ",;\t"
LONGEST_CELL = 2**31 - 1  # Python's limit of 131,072 characters is shorter than many documents


def read_csv(stream: ByteStream, name: str, problems: Problems, fields: RecordFields) -> Iterator[Place]:
    """Yield the documents of a table. Columns other than id, title, text, value become metadata.

    The delimiter is the most frequent of `,`, `;` and tab in the header. Cells in double quotes may contain
    delimiters, line ends and doubled quotes. Numbers and booleans are typed by column (`corpus/records.py`).
    A row that does not fit the header or violates quoting is a problem with its first line, and so is one
    that is not UTF-8, unless the file's beginning shows another encoding (`detected`).
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


_ROWS_AT_A_TIME = 1024


def read_parquet(stream: ByteStream, name: str, problems: Problems, fields: RecordFields) -> Iterator[Place]:
    """Yield the documents of a Parquet file. Columns other than id, title, text, value become metadata.

    Memory is bounded by the file's row groups. A bad row is a problem with its number from 1. Times and dates
    become ISO 8601, decimals numbers, NaN and infinity null; columns of bytes are omitted.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    parquet = optional("pyarrow.parquet", extra="parquet", what="Parquet files")

    def batches() -> Iterator[Any]:
        return parquet.ParquetFile(stream).iter_batches(batch_size=_ROWS_AT_A_TIME)

    return _documents(batches, name, problems, fields)


def read_arrow(stream: ByteStream, name: str, problems: Problems, fields: RecordFields) -> Iterator[Place]:
    """Yield the documents of an Arrow file, streaming or random-access; otherwise as `read_parquet`."""
    ipc = optional("pyarrow.ipc", extra="parquet", what="Arrow files")

    def batches() -> Iterator[Any]:
        # The random-access format begins with a mark, the streaming one of Hugging Face's `save_to_disk`
        # with the schema.
        if _begins_with(stream, b"ARROW1"):
            file = ipc.open_file(stream)
            whole = (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            whole = iter(ipc.open_stream(stream))
        for batch in whole:
            for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
                yield batch.slice(start, _ROWS_AT_A_TIME)

    return _documents(batches, name, problems, fields)


def _documents(
    batches: Callable[[], Iterator[Any]], name: str, problems: Problems, fields: RecordFields
) -> Iterator[Place]:
    row = 0
    try:
        for batch in batches():
            if row == 0 and (complaint := fields.complaint_about(list(batch.schema.names))):
                problems.add(name, None, complaint)
                return
            if row == 0 and (remark := fields.remark_on(list(batch.schema.names))) is not None:
                problems.remark(name, remark)
            for part in _readable(batch):
                row += 1
                try:
                    record = _plain(part if isinstance(part, dict) else part.to_pylist()[0])
                except OverflowError as error:
                    message = f"a date, time or duration out of range: {error}"
                    problems.add(name, row, message, skipped=fields.ids_of(_named(part, fields)))
                    continue
                try:
                    yield row, to_document(record, fields)
                except BadRecord as error:
                    problems.add(name, row, str(error), skipped=fields.ids_of(record))
    except (
        OSError,
        ValueError,
        NotImplementedError,
        MemoryError,
    ) as error:  # pyarrow's own derive from these
        problems.add(name, row + 1, f"cannot be read from here on: {error}")


def _readable(batch: Any) -> list[Any]:
    """The rows of a batch; each as a batch of its own if one has a time that Python's cannot hold."""
    try:
        return batch.to_pylist()
    except OverflowError:
        return [batch.slice(at, 1) for at in range(batch.num_rows)]


def _named(row: Any, fields: RecordFields) -> dict[str, Any]:
    """The id, title and text of a batch of one row, of which another column cannot be held."""
    names = [name for name in fields.of(dict.fromkeys(row.schema.names)) if name is not None]
    return _plain(row.select(names).to_pylist()[0])


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: plain_json(value) for name, value in record.items() if not isinstance(value, bytes | bytearray)
    }


def _begins_with(stream: Any, mark: bytes) -> bool:
    matches = stream.read(len(mark)) == mark
    stream.seek(0)
    return matches


_SPLITS = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"


def is_dataset(folder: Path) -> bool:
    """True if a folder is a saved dataset, or several splits of one."""
    return (folder / _SPLITS).is_file() or all((folder / name).is_file() for name in (_STATE, _INFO))


def dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a saved dataset in its own order, split after split.

    Raises:
        InvalidSource: a file of the dataset is missing or invalid.
    """
    try:
        if (folder / _SPLITS).is_file():
            splits = _read(folder / _SPLITS)["splits"]
            return [file for split in splits for file in dataset_files(_inside(folder, split))]
        state = _read(folder / _STATE)
        files = [_inside(folder, file["filename"]) for file in state["_data_files"]]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidSource(f"{folder}: not a whole saved dataset ({error!r}); save it again") from error
    for file in files:
        if not file.is_file():
            raise InvalidSource(f"{file}: missing, though {_STATE} names it; save the dataset again")
    return files


def _read(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is not a plain name")
    return folder / name
