"""Numbers in sentences of the command line: singular and plural, rates, and what 0 epochs mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli.terminal import Terminal

from dsearch.cli.session import as_rate
from dsearch.cli.training.output import epochs_text
from dsearch.errors import amount


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (amount(1, "document"), "1 document"),
        (amount(0, "document"), "0 documents"),
        (amount(2, "query", "queries"), "2 queries"),
        (epochs_text(1), "1 epoch"),
        (epochs_text(12), "12 epochs"),
        (epochs_text("?"), "? epochs"),
        (epochs_text(0), "0 epochs: no amount of training answered held-out queries better"),
        (as_rate(0.14), "0.1"),
        (as_rate(0.049), "0.049"),
        (as_rate(9.96), "10"),
        (as_rate(1234.5), "1,234"),
    ],
)
def test_numbers_read_as_they_are_said(given: str, text: str) -> None:
    assert given == text


def test_a_collection_of_one_document_is_spoken_of_in_the_singular(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a river")
    assert "one: 1 document, generation" in dsearch("index", tmp_path / "a.txt", "-c", "one")[1]
    assert "one: 1 document, generation" in dsearch("collections")[1]
    assert dsearch("backup", tmp_path / "copy", "-c", "one")[1].startswith(
        f"{tmp_path / 'copy'}: 1 document as"
    )
    assert "one: whole: 1 document, 1 embedding, 2 generations, 0 models" in dsearch("verify")[1]
