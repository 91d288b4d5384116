"""How many documents of a folder are deleted without a question, and what is said of them."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from dsearch.cli.commands.index import Folders, delete_by_server
from dsearch.corpus import Mirror, Problems


class MirrorOf:
    """A mirror of 20 documents of which some are gone."""

    recorded = 20

    def __init__(self, gone: int):
        self.gone = [f"d{number}" for number in range(gone)]

    def obsolete(self, sources: object) -> list[str]:
        return self.gone


class Client:
    """Counts what it is asked to delete."""

    def __init__(self) -> None:
        self.parts: list[int] = []

    def delete_many(self, collection: str, *, ids: list[str]) -> Any:
        assert collection == "notes"
        self.parts.append(len(ids))
        return type("Deleted", (), {"deleted": len(ids) - 1})


@pytest.mark.parametrize(
    ("gone", "options", "deleted", "refused"),
    [
        (0, {}, 0, 0),
        (1, {}, 1, 0),
        (2, {}, 2, 0),  # a tenth
        (3, {}, 0, 3),
        (20, {}, 0, 20),
        (20, {"yes": True}, 20, 0),
        (1, {"keep": True}, 0, 0),
        (20, {"keep": True, "yes": True}, 0, 0),
    ],
)
def test_up_to_a_tenth_needs_no_consent(
    monkeypatch: pytest.MonkeyPatch, gone: int, options: dict[str, Any], deleted: int, refused: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no terminal
    folders = Folders(Problems(), Mirror(), **options)
    folders.mirror = MirrorOf(gone)  # type: ignore[assignment]
    assert len(folders.obsolete(nullcontext)) == deleted
    assert folders.refused == refused


@pytest.mark.parametrize(
    ("gone", "shown"), [(3, "(d0, d1, d2)"), (4, "(d0, d1, d2, …)"), (20, "(d0, d1, d2, …)")]
)
def test_a_question_names_the_first_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gone: int, shown: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    folders = Folders(Problems(), Mirror())
    folders.mirror = MirrorOf(gone)  # type: ignore[assignment]
    folders.obsolete(nullcontext)
    expected = f"gone from the folder: {gone} of 20 documents {shown}: nothing is deleted"
    assert capsys.readouterr().err.startswith(expected)


def test_many_are_deleted_in_parts() -> None:
    client = Client()
    deleted = delete_by_server(client, "notes", [str(number) for number in range(2001)])  # type: ignore[arg-type]
    assert client.parts == [1000, 1000, 1]
    assert deleted == 1998  # as the server counted them
    assert delete_by_server(Client(), "notes", []) == 0  # type: ignore[arg-type]
