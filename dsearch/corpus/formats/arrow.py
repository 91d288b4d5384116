"""Parquet and Arrow files: one document a row, read batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dsearch.corpus.formats.extras import optional
from dsearch.corpus.formats.lines import ByteStream, Problems
from dsearch.corpus.records import BadRecord, Place, RecordFields, plain_json, to_document

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
