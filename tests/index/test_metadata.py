"""Fields of the metadata as columns: what is found by value, what is left out, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.errors import CorruptData
from dsearch.index import metadata
from dsearch.index.metadata import FieldsBuilder, MetadataFields

DOCUMENTS: list[dict[str, Any]] = [
    {"a": 1, "b": "x", "in": {"c": True}},
    {"a": 1.0, "b": ["x", "y", {"z": 1}], "in": {}},
    {"a": True, "b": None},
    {"a": "1", "b": [], "in": 5},
    {},
]


def built(folder: Path, documents: list[dict[str, Any]] = DOCUMENTS) -> MetadataFields:
    builder = FieldsBuilder()
    for document in documents:
        builder.add(document)
    assert len(builder) == len(documents)
    builder.save(folder / "fields")
    return MetadataFields(folder / "fields", len(documents))


def having(fields: MetadataFields, *keys: str) -> dict[str, list[int]]:
    """The documents with each value of a field."""
    column = fields.column(keys)
    assert column is not None
    found: dict[str, list[int]] = {}
    for code, value in enumerate(column.values):
        wanted = np.arange(len(column.values)) == code
        found[json.dumps(value)] = np.flatnonzero(column.having(wanted)).tolist()
    return found


def test_values_of_each_kind_are_apart_and_numbers_are_one_kind(tmp_path: Path) -> None:
    fields = built(tmp_path)
    assert having(fields, "a") == {"[]": [], "1": [0, 1], "true": [2], '"1"': [3]}
    assert having(fields, "b") == {"[]": [1, 3], '"x"': [0, 1], '"y"': [1], "null": [2]}
    assert having(fields, "in", "c") == {"[]": [], "true": [0]}
    assert having(fields, "in") == {"[]": [0, 1], "5": [3]}


def test_present_is_whatever_the_value(tmp_path: Path) -> None:
    fields = built(tmp_path)
    present = {
        name: np.flatnonzero(column.present()).tolist()
        for name in ("a", "b", "in", "none")
        if (column := fields.column((name,))) is not None
    }
    assert present == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3], "in": [0, 1, 3], "none": []}


@pytest.mark.parametrize("value", ["with\0zero", 2**63, -(2**63) - 1, ["fine", "with\0zero"]])
def test_a_field_with_a_value_that_cannot_be_kept_is_left_out(tmp_path: Path, value: Any) -> None:
    fields = built(tmp_path, [{"a": 1, "b": 2}, {"a": value}, {"a": 3}])
    assert fields.column(("a",)) is None
    assert having(fields, "b") == {"[]": [], "2": [0]}
    assert fields.column(("none",)) is not None


def test_the_largest_numbers_are_kept(tmp_path: Path) -> None:
    assert having(built(tmp_path, [{"a": 2**63 - 1}, {"a": -(2**63)}]), "a") == {
        "[]": [],
        str(2**63 - 1): [0],
        str(-(2**63)): [1],
    }


def test_too_many_fields_and_values_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_FIELDS", 2)
    monkeypatch.setattr(metadata, "MAX_VALUES", 3)
    fields = built(tmp_path, [{"a": n, "b": n % 3, "c": n} for n in range(5)])
    assert fields.column(("a",)) is None  # a fourth value
    assert having(fields, "b") == {"[]": [], "0": [0, 3], "1": [1, 4], "2": [2]}
    assert fields.column(("c",)) is None
    assert fields.column(("other",)) is None  # it may have been among those left out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("fields.json", "{"),
        ("fields.json", "{}"),
        ("0_values.json", "[[]]"),
        ("0_values.json", "{"),
        ("0_positions.npy", None),
        ("0_codes.npy", np.zeros(2, np.int32)),
        ("0_positions.npy", np.full(4, 5, np.int32)),
    ],
)
def test_files_that_do_not_fit_are_damaged(tmp_path: Path, name: str, content: Any) -> None:
    built(tmp_path)
    path = tmp_path / "fields" / name
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    with pytest.raises(CorruptData, match="build the generation again"):
        MetadataFields(tmp_path / "fields", 5).column(("a",))
