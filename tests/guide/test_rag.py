"""scripts/examples/rag.py, here and over HTTP, with a reader of words in place of the language model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.paths import SCRIPTS

MODULES = ("rag", "facts", "reader", "server")


class WordReader:
    """Knows an answer where it stands in the document."""

    def __init__(self, documents: list[Any], folder: str | None):
        self.texts = {one.id: one.text for one in documents}

    def log_likelihoods(self, questions: list[Any], ids: list[list[str]]) -> torch.Tensor:
        longest = max(map(len, ids))
        rows = [
            [(-0.5 if one.answer in self.texts[id] else -8.0) if id else -torch.inf for id in line]
            + [-torch.inf] * (longest - len(line))
            for one, line in zip(questions, ids, strict=True)
        ]
        return torch.tensor(rows)


@pytest.fixture
def rag(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(SCRIPTS / "examples"))
    yield importlib.import_module("rag")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_facts_are_held_out_with_their_towns(rag: Any) -> None:
    documents, training, held_out = rag.facts(5, 3)
    known = {one.id for one in documents}
    assert len(known) == len(documents) == 8 * 7
    towns = [{one.document.partition("-")[0] for one in part} for part in (training, held_out)]
    assert [len(part) for part in towns] == [5, 3]
    assert not towns[0] & towns[1]
    for one in (*training, *held_out):
        text = next(document.text for document in documents if document.id == one.document)
        assert one.answer in text
        assert one.document.partition("-")[2] not in one.text  # the term of the jargon


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("http", [False, True])
def test_a_reader_teaches_the_search(
    rag: Any, http: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rag, "Reader", WordReader)
    steps = "6" if http else "25"
    arguments = ["rag.py", "--towns", "6", "--held-out", "4", "--steps", steps, *(["--http"] if http else [])]
    monkeypatch.setattr(sys, "argv", arguments)
    rag.main()
    before, after, reason = capsys.readouterr().out.strip().splitlines()
    figures = [float(line.partition("NLL ")[2].partition(",")[0]) for line in (before, after)]
    assert figures[1] < figures[0]
    assert "answer log-likelihood" in reason
