"""Results without anything in them: a sentence for people, empty lists for programs, never silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.types import Document

EMPTY: list[tuple[str, str, dict[str, Any] | list[Any]]] = [
    ("search boat -c none", "none has no documents; fill it with: dsearch index", {"hits": []}),
    ('search boat -c one --filter {"year":{"gt":9}}', "nothing was found", {"hits": []}),
    ("similar a -c one", "nothing was found", {"hits": []}),
    ("attend boat -c none", "nothing is in reach", {}),
    ("predict boat --field year -c none", "no document in reach has it", {}),
    ("facets year -c none", "no documents", {"documents": 0, "facets": {"year": []}}),
    ("facets colour -c one", "none of these documents has the field colour", {"facets": {"colour": []}}),
    ("stats -c none", "0, 0 pending, 0 deleted", {"documents": 0}),
    ("judgements -c none", "nothing is judged yet", {"judgements": {}}),
    ("judgements next -c none", "give the same hits", {"queries": []}),
    ("feedback stats -c none", "0 events", {"events": 0}),
    ("alias", "no alias", {}),
    ("keys list", "no keys", []),
    ("verify none", "whole", [{"ok": True}]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "home"
    with SearchEngine(path, encoder=HashingEncoder) as engine:
        engine.create("none")
        engine.create("one").ingest([Document("a", "a boat", metadata={"year": 1})])
    return path


@pytest.fixture
def home(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    return Terminal(folder, capsys, monkeypatch)


@pytest.mark.parametrize(("line", "sentence", "content"), EMPTY, ids=[line for line, _, _ in EMPTY])
def test_an_empty_result_says_so(home: Terminal, line: str, sentence: str, content: Any) -> None:
    code, out, err = home(*line.split(" "))
    assert code == 0, err
    assert sentence in out + err
    code, out, err = home(*line.split(" "), "--json")
    assert code == 0, err
    answer = json.loads(out)
    if isinstance(content, dict):
        assert {name: answer[name] for name in content} == content
    else:
        assert len(answer) == len(content)
        assert all(item.items() >= wanted.items() for item, wanted in zip(answer, content, strict=True))


def test_a_home_without_collections_says_how_to_make_one(dsearch: Terminal) -> None:
    code, out, err = dsearch("collections")
    assert (code, out) == (0, "")
    assert "no collection yet; make one with: dsearch index SOURCE -c NAME" in err
    assert json.loads(dsearch("collections", "--json")[1]) == []
