"""Small column files (qrels, runs, pairs), row by row, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from dsearch.errors import InvalidSource


class Row(NamedTuple):
    """One line that holds something: where it stands and its columns."""

    place: str
    columns: list[str]


def read_rows(path: str | PathLike[str], what: str) -> Iterator[Row]:
    """The non-blank lines of a UTF-8 file, cut at tabs where there are any, otherwise at runs of blanks.

    Cutting at tabs first keeps ids that contain blanks whole. `what` names the kind of file in errors.

    Raises:
        InvalidSource: the file does not exist, is a folder, or a line of it is not UTF-8.
    """
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidSource(f"{path}: no {what} there that can be read ({error.strerror})") from error
    with file:
        for number, raw in enumerate(file, start=1):
            place = f"{path}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InvalidSource(f"{place}: byte {error.start + 1} is not UTF-8; save as UTF-8") from error
            if line.strip():
                cut = line.split("\t") if "\t" in line else line.split()
                yield Row(place, [column.strip() for column in cut])
