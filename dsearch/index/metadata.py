"""Metadata of a generation's documents by field: a filter evaluates distinct values, not a million documents.

    fields/fields.json           the fields, and those that are left out
           0_positions.npy       int32 [entries], ascending: a document and …
           0_codes.npy           int32 [entries]: … the index of its value in field 0
           0_values.json         the distinct values; the first stands for "a list or an object is there"

A list counts by its elements, one entry each, as in filters. Lists and objects within a list are ignored;
objects outside of lists are flattened: `author.name` is a field. This is derived data: a field that cannot be
stored exactly (too many fields or values, numbers beyond 64 bits, a NUL in a text, at which SQLite ends) is
left out, and filters on it query the store.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32

from dsearch.errors import CorruptData

FOLDER = "fields"
NAME = "fields.json"
MAX_FIELDS = 256
MAX_VALUES = 1 << 20  # distinct values of a field

Keys = tuple[str, ...]
Scalar = str | int | float | bool | None

_WITHIN: list[Any] = []  # the value of code 0


class FieldsBuilder:
    """Collects the metadata of documents, given in the order of their positions."""

    def __init__(self) -> None:
        self._documents = 0
        self._columns: dict[Keys, _Column] = {}
        self._left_out: set[Keys] = set()
        self._more = False

    def __len__(self) -> int:
        """The number of documents so far."""
        return self._documents

    def add(self, metadata: Mapping[str, Any]) -> None:
        """Add the metadata of the next document."""
        self._walk((), metadata)
        self._documents += 1

    def save(self, folder: Path) -> None:
        """Write the files into the new folder `folder`."""
        folder.mkdir()
        columns = [(keys, column) for keys, column in self._columns.items() if keys not in self._left_out]
        for number, (_, column) in enumerate(columns):
            np.save(folder / f"{number}_positions.npy", np.frombuffer(column.positions, np.int32))
            np.save(folder / f"{number}_codes.npy", np.frombuffer(column.codes, np.int32))
            values = [_WITHIN, *(value for _, value in column.values)]
            (folder / f"{number}_values.json").write_text(json.dumps(values, ensure_ascii=False), "utf-8")
        content = {
            "fields": [keys for keys, _ in columns],
            "left_out": sorted(self._left_out),
            "more": self._more,
        }
        (folder / NAME).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")

    def _walk(self, above: Keys, fields: Mapping[str, Any]) -> None:
        for key, value in fields.items():
            keys = (*above, key)
            column = self._columns.get(keys)
            if column is None:
                if len(self._columns) >= MAX_FIELDS:
                    self._more = True
                    continue
                column = self._columns[keys] = _Column()
            if keys not in self._left_out and not column.add(self._documents, value):
                self._left_out.add(keys)
                self._columns[keys] = _Column()  # keeps the field's number, drops its entries
            if isinstance(value, dict):
                self._walk(keys, value)


class _Column:
    """Entries of one field; `values` are keyed by their kind, too: 1, "1" and true are different."""

    def __init__(self) -> None:
        self.positions = array("i")
        self.codes = array("i")
        self.values: dict[tuple[str, Scalar], int] = {}

    def add(self, position: int, value: Any) -> bool:
        """Add a document's value; return False if it cannot be stored exactly."""
        if isinstance(value, dict | list):
            self._entry(position, 0)
            elements: Iterable[Any] = value if isinstance(value, list) else ()
            elements = [element for element in elements if not isinstance(element, dict | list)]
        else:
            elements = [value]
        for element in elements:
            kind = _kind(element)
            if kind is None:
                return False
            code = self.values.setdefault((kind, element), len(self.values) + 1)
            if code > MAX_VALUES:
                return False
            self._entry(position, code)
        return True

    def _entry(self, position: int, code: int) -> None:
        self.positions.append(position)
        self.codes.append(code)


class MetadataFields:
    """Fields of a generation's documents, read lazily; safe in many threads."""

    def __init__(self, folder: Path, documents: int):
        """Read the list of fields; raises CorruptData."""
        self._folder, self._documents = folder, documents
        try:
            content = json.loads((folder / NAME).read_text("utf-8"))
            self._numbers = {tuple(keys): number for number, keys in enumerate(content["fields"])}
            self._left_out = {tuple(keys) for keys in content["left_out"]}
            self._more = bool(content["more"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CorruptData(f"{folder / NAME}: {error}; build the generation again") from error
        self._read = cache(self._load)

    def __len__(self) -> int:
        """The number of documents."""
        return self._documents

    def column(self, keys: Keys) -> FieldColumn | None:
        """Return a field, without entries if no document has it; None if the field was left out.

        Raises:
            CorruptData: its files are inconsistent.
        """
        number = self._numbers.get(keys)
        if number is not None:
            return self._read(number)
        if self._more or keys in self._left_out:
            return None
        return FieldColumn(self._documents, np.zeros(0, np.int32), np.zeros(0, np.int32), [_WITHIN])

    def _load(self, number: int) -> FieldColumn:
        folder = self._folder
        try:
            positions, codes = (
                np.load(folder / f"{number}_{name}.npy", mmap_mode="r", allow_pickle=False)
                if (folder / f"{number}_{name}.npy").stat().st_size > 128
                else np.zeros(0, np.int32)
                for name in ("positions", "codes")
            )
            values = json.loads((folder / f"{number}_values.json").read_text("utf-8"))
            fit = len(positions) == len(codes) and (codes.max(initial=0) < len(values))
            fit = fit and positions.max(initial=-1) < self._documents
        except (OSError, ValueError) as error:
            raise CorruptData(f"{folder}: field {number}: {error}; build the generation again") from error
        if not fit:
            raise CorruptData(f"{folder}: field {number} does not fit; build the generation again")
        return FieldColumn(self._documents, positions, codes, values)


class FieldColumn:
    """One field of all documents.

    Attributes:
        values: distinct values; the first, an empty list, stands for "a list or an object is there".
    """

    def __init__(
        self,
        documents: int,
        positions: Int32[np.ndarray, " entries"],
        codes: Int32[np.ndarray, " entries"],
        values: list[Any],
    ):
        self._documents, self._positions, self._codes = documents, positions, codes
        self.values = values

    def having(self, wanted: Bool[np.ndarray, " values"]) -> Bool[np.ndarray, " documents"]:
        """Mask of the documents with one of the wanted values, directly or as an element of a list."""
        mask = np.zeros(self._documents, bool)
        mask[self._positions[wanted[self._codes]]] = True
        return mask

    def present(self) -> Bool[np.ndarray, " documents"]:
        """Mask of the documents that have the field."""
        return self.having(np.ones(len(self.values), bool))


def _kind(value: Any) -> str | None:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return None if "\0" in value else "text"
    if isinstance(value, int):
        return "number" if -(2**63) <= value < 2**63 else None
    return "number"
