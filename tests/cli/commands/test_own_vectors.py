"""Vectors of one's own by command line: indexed, searched, and hostile ones refused with a message."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli.terminal import Terminal


def vector(number: int) -> list[float]:
    angle = number / 12 * math.pi
    return [math.cos(angle), math.sin(angle)]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def item(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"i{number}",
        "title": f"item{number}",
        "vec": vector(number),
        "label": number % 3,
        **changes,
    }


@pytest.fixture
def items(dsearch: Terminal, tmp_path: Path) -> Terminal:
    source = write(tmp_path / "items.jsonl", [item(number) for number in range(12)])
    code, out, err = dsearch("index", source, "-c", "items", "--embedding-column", "vec")
    assert code == 0, err
    assert "items: 12 documents, generation 2: 12 new" in out
    return dsearch


def hits(dsearch: Terminal, *arguments: str) -> list[str]:
    code, out, err = dsearch(*arguments, "-c", "items", "--json")
    assert code == 0, err
    return [hit["id"] for hit in json.loads(out)["hits"]]


def test_vectors_are_searched_in_every_command(items: Terminal, tmp_path: Path) -> None:
    state = json.dumps(vector(5))
    np.save(tmp_path / "rows.npy", np.array([vector(5), vector(9)], np.float32))
    (tmp_path / "one.json").write_text(state)
    assert hits(items, "search", "--vector", state, "-k", "1") == ["i5"]
    assert hits(items, "search", "--vector", str(tmp_path / "one.json"), "-k", "1") == ["i5"]
    assert set(hits(items, "search", "item2", "--vector", state, "-k", "12")) >= {"i2", "i5"}
    assert "i6" in hits(items, "similar", "i4", "--vector", json.dumps(vector(7)), "-k", "3")
    rows = str(tmp_path / "rows.npy")
    attended = json.loads(items("attend", "--vectors", rows, "-c", "items", "--json")[1])
    assert [one["ids"][0] for one in attended["results"]] == ["i5", "i9"]
    predicted = json.loads(
        items("predict", "--vectors", rows, "--field", "label", "-c", "items", "--json")[1]
    )
    assert [one["evidence"][0]["id"] for one in predicted["results"]] == ["i5", "i9"]


HOSTILE = {
    "[]": "has 0 numbers",
    "[1.0]": "has 1 number; this collection's embeddings have 2",
    "[0.0, 0.0]": "has length 0",
    "[NaN, 1.0]": "vector",
    "[Infinity, 1.0]": "vector",
    "[1e999, 1.0]": "vector",
    "[true, null]": "vector",
    '["a", "b"]': "vector",
    "[[1, 0], [0, 1]]": "holds 2 vectors",
    "[[1], [0, 1]]": "vector",
    "[1,": "vector",
    "nothing.npy": "No such file",
}


def test_a_hostile_vector_is_refused_with_a_message(items: Terminal) -> None:
    for text, reason in HOSTILE.items():
        code, out, err = items("search", "--vector", text, "-c", "items")
        assert (code != 0, out) == (True, ""), text
        assert reason in err
        assert "Traceback" not in err


def test_a_hostile_embedding_costs_nothing(items: Terminal, tmp_path: Path) -> None:
    for embedding in ([1.0], [0.0, 0.0], [None, 1.0], "x", 7, None, [], [[1, 0]]):
        source = write(tmp_path / "bad.jsonl", [item(40, vec=embedding)])
        code, _, err = items("index", source, "-c", "items", "--embedding-column", "vec")
        assert code != 0, embedding
        assert "embedding" in err or "vec" in err
        assert "Traceback" not in err
    assert hits(items, "search", "--vector", json.dumps(vector(5)), "-k", "1") == ["i5"]
    assert json.loads(items("collections", "--json")[1])[0]["documents"] == 12


def test_vectors_without_texts_are_indexed_and_found(dsearch: Terminal, tmp_path: Path) -> None:
    lines = [{"id": f"i{number}", "vec": vector(number), "label": number % 3} for number in range(12)]
    source = write(tmp_path / "bare.jsonl", lines)
    code, out, err = dsearch("index", source, "-c", "items", "--embedding-column", "vec")
    assert code == 0, err
    assert "items: 12 documents" in out
    assert hits(dsearch, "search", "--vector", json.dumps(vector(5)), "-k", "1") == ["i5"]
    assert hits(dsearch, "search", "label", "--mode", "keyword") == []
    code, out, err = dsearch("search", "--vector", json.dumps(vector(5)), "-c", "items", "-k", "2")
    assert code == 0, err
    assert "i5" in out
    code, _, err = dsearch("migrate", "-c", "items", "--encoder", "other")
    assert code != 0
    assert "has no encoder: its embeddings are given" in err


def test_a_table_of_vectors_needs_no_text_column(dsearch: Terminal, tmp_path: Path) -> None:
    rows = "".join(f'i{number},"{json.dumps(vector(number))}"\n' for number in range(12))
    (tmp_path / "bare.csv").write_text("id,vec\n" + rows)
    code, _, err = dsearch("index", tmp_path / "bare.csv", "-c", "items", "--embedding-column", "vec")
    assert code == 0, err
    assert hits(dsearch, "search", "--vector", json.dumps(vector(5)), "-k", "1") == ["i5"]


def test_a_vector_without_text_and_id_is_refused(dsearch: Terminal, tmp_path: Path) -> None:
    source = write(tmp_path / "bad.jsonl", [{"vec": vector(1)}])
    code, _, err = dsearch("index", source, "-c", "items", "--embedding-column", "vec")
    assert code != 0
    assert "give the record an id" in err
