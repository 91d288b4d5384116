"""Small column files (qrels, runs, pairs), row by row, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from dsearch.errors import InvalidSource


class Row(NamedTuple):
    """A non-blank line: its place and its columns."""

    place: str
    columns: list[str]


def read_rows(path: str | PathLike[str], what: str) -> Iterator[Row]:
    """Yield the non-blank lines of a UTF-8 file, split at tabs if there are any, else at blanks.

    Splitting at tabs keeps ids with blanks intact. `what` names the kind of file in errors.

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
