"""What a generation is built from is checked: rows, names, projections, blocks, texts, k, exclusions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.index import validation as of

pytestmark = pytest.mark.usefixtures("unchecked")


def test_rows_ascend_strictly_from_zero() -> None:
    assert of.checked_rows(np.array([0, 3, 4], np.int32)).dtype == np.int64
    assert of.checked_rows(np.array([])).tolist() == []
    for wrong in ([-1, 2], [0, 0], [3, 1], [0, 2, 1]):
        with pytest.raises(InvalidRequest, match="not strictly ascending from 0 on"):
            of.checked_rows(np.array(wrong))
    for odd in ([0.0, 1.0], [[0, 1]], ["a"]):
        with pytest.raises(InvalidRequest, match="use a list of integers"):
            of.checked_rows(np.array(odd))


def test_a_generation_has_a_number_from_one_a_sequence_from_zero_and_a_json_encoder() -> None:
    assert of.checked_identity(1, 0, {"name": "x"}) == {"name": "x"}
    for number, sequence in ((0, 0), (1, -1)):
        with pytest.raises(
            InvalidRequest, match=f"number={number}, sequence={sequence}; use a number from 1"
        ):
            of.checked_identity(number, sequence, {})
    for odd in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(InvalidRequest, match="use what JSON can hold"):
            of.checked_identity(1, 0, odd)


def test_a_projection_that_changes_nothing_is_none() -> None:
    assert of.checked_projection(None, 3) is None
    assert of.checked_projection(np.eye(3), 3) is None
    turned = of.checked_projection(np.eye(3)[:2], 3)
    assert turned is not None
    assert (turned.dtype, turned.shape) == (np.float32, (2, 3))
    for odd in (np.eye(2), np.zeros((0, 3)), np.zeros(3)):
        with pytest.raises(DimensionMismatch, match=r"use \[key_dim, 3\]"):
            of.checked_projection(odd, 3)
    for number in (np.nan, np.inf):
        with pytest.raises(InvalidRequest, match="key_projection holds NaN or infinity"):
            of.checked_projection(np.full((2, 3), number), 3)


def written(
    folder: Path, blocks: Any, count: int, further: Any = ()
) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    told: list[tuple[str, int, int]] = []
    of.write_blocks(folder / "x.npy", blocks, count, lambda *step: told.append(step), further)
    return of.open_matrix(folder / "x.npy"), told


def test_blocks_are_one_matrix_with_what_comes_behind_the_rows(tmp_path: Path) -> None:
    one, two = np.arange(6.0).reshape(2, 3), np.arange(6.0, 9.0).reshape(1, 3)
    matrix, told = written(tmp_path, iter([one, two]), 3, [two, two])
    assert matrix.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [6, 7, 8], [6, 7, 8]]
    assert matrix.dtype == np.float32
    assert told == [("embeddings", 2, 3), ("embeddings", 3, 3)]
    empty, _ = written(tmp_path, np.zeros((0, 3)), 0)
    assert empty.shape == (0, 3)
    assert not empty.flags.writeable


@pytest.mark.parametrize(
    ("blocks", "count", "error", "message"),
    [
        ([], 0, InvalidRequest, "no block of embeddings"),
        ([np.zeros((2, 3))], 3, InvalidRequest, "2 or more embeddings for 3 rows"),
        ([np.zeros((2, 3)), np.zeros((2, 3))], 3, InvalidRequest, "4 or more embeddings for 3 rows"),
        ([np.zeros((2, 3)), np.zeros((1, 2))], 3, DimensionMismatch, "of length 2 after 3"),
        ([np.zeros((2, 3)), np.full((1, 3), np.nan)], 3, InvalidRequest, "NaN or infinity in rows 2 to 2"),
        ([np.zeros(3)], 3, InvalidRequest, r"use \[documents, encoder_dim\]"),
        ([np.zeros((2, 0))], 2, InvalidRequest, r"use \[documents, encoder_dim\]"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(
    tmp_path: Path, blocks: Any, count: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        written(tmp_path, blocks, count)


def test_no_block_is_read_beyond_one_too_many(tmp_path: Path) -> None:
    """A stream may be endless, and what is written would fill the disk."""
    read: list[int] = []
    blocks = (read.append(number) or np.zeros((2, 3)) for number in range(100))
    with pytest.raises(InvalidRequest, match="4 or more embeddings for 3 rows"):
        written(tmp_path, blocks, 3)
    assert read == [0, 1]
    assert (tmp_path / "x.npy").stat().st_size <= 128 + 4 * 2 * 3


def test_texts_are_as_many_as_rows_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "_PROGRESS_EVERY", 2)
    told: list[tuple[str, int, int]] = []
    assert list(of.counted(iter("abcde"), 5, lambda *step: told.append(step))) == [*"abcde"]
    assert told == [("keyword", 2, 5), ("keyword", 4, 5), ("keyword", 5, 5)]
    for texts, message in (("ab", "^2 texts for 3 rows"), ("abcd", "^more than 3 texts for 3 rows")):
        with pytest.raises(InvalidRequest, match=message):
            list(of.counted(iter(texts), 3, lambda *_: None))
    assert list(of.counted(iter(()), 0, lambda *_: None)) == []


def test_rows_are_projected_and_finite() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert of.projected(rows, np.array([[0.0, 2.0]]), "keys").tolist() == [[4.0], [8.0]]
    assert of.projected(rows, None, "keys").tolist() == rows.tolist()
    with pytest.raises(InvalidRequest, match="keys: NaN or infinity in row 1; give finite numbers"):
        of.finite(np.array([[1.0], [np.inf]]), "keys")


def test_k_and_exclusions() -> None:
    assert of.checked_k(np.int64(3)) == 3  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5, "3", None):
        with pytest.raises(InvalidRequest, match="use an integer of at least 1"):
            of.checked_k(wrong)  # type: ignore[arg-type]
    assert of.checked_exclude(None, 3) is None
    assert of.checked_exclude(np.zeros(3, bool), 3) is None
    mask = of.checked_exclude(np.array([True, False, False]), 3)
    assert mask is not None
    assert mask.tolist() == [True, False, False]
    for odd in (np.zeros(2, bool), np.zeros(3)):
        with pytest.raises(InvalidRequest, match=r"use booleans of shape \(3,\)"):
            of.checked_exclude(odd, 3)
