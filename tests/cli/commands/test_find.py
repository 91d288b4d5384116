"""Finding by filter, by likeness, by facet, and deleting what a filter finds, from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.cli import main
from dsearch.encoder import Encoder


class Terminal:
    """Runs commands as `dsearch …` would."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self._capsys, self._monkeypatch = capsys, monkeypatch
        monkeypatch.setenv("DSEARCH_HOME", str(home))

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["dsearch", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """With sixty documents whose year counts up from 2000."""
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    terminal = Terminal(tmp_path / "home", capsys, monkeypatch)
    source = tmp_path / "things.jsonl"
    source.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"d{i}",
                    "text": f"river stone number{i} lamp{i % 3}",
                    "metadata": {"year": 2000 + i % 4},
                }
            )
            + "\n"
            for i in range(60)
        )
    )
    assert terminal("index", source)[0] == 0
    return terminal


def test_search_with_filter_highlights_and_pages(dsearch: Terminal) -> None:
    ask = ("search", "river lamp1", "--filter", '{"year": {"gte": 2003}}', "-k", "4")
    code, out, err = dsearch(*ask, "--highlight", "--json")
    assert code == 0
    answer = json.loads(out)
    assert all(hit["metadata"]["year"] == 2003 for hit in answer["hits"])
    (piece,) = answer["hits"][0]["highlights"]
    assert [piece["text"][start:end] for start, end in piece["spans"]] == ["river", "lamp1"]
    assert "explain" not in answer["hits"][0]

    code, out, err = dsearch(*ask)
    assert f"more: --cursor {answer['next_cursor']}" in err
    more = json.loads(dsearch(*ask, "--cursor", answer["next_cursor"], "--json")[1])
    assert [hit["rank"] for hit in more["hits"]] == [5, 6, 7, 8]
    assert not {hit["id"] for hit in more["hits"]} & {hit["id"] for hit in answer["hits"]}


def test_highlights_are_bold_in_a_terminal_alone(dsearch: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("search", "stone", "--highlight", "-k", "1", "--mode", "keyword")
    assert "\x1b" not in dsearch(*ask)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "river \x1b[1mstone\x1b[22m number" in dsearch(*ask)[1]


def test_facets_and_deletion(dsearch: Terminal) -> None:
    out = dsearch("facets", "year", "--filter", '{"year": {"ne": 2003}}')[1]
    assert out == "year\n      15  2000\n      15  2001\n      15  2002\n"
    code, out, _ = dsearch("delete", "--filter", '{"year": {"eq": 2001}}')
    assert (code, out) == (0, "default: 15 deleted\n")
    assert dsearch("delete", "d0", "nothing")[1] == "default: 1 deleted, 1 was not there\n"
    left = json.loads(dsearch("facets", "year", "--json")[1])
    assert left["documents"] == 44
    assert {value["value"]: value["documents"] for value in left["facets"]["year"]} == {
        2000: 14,
        2002: 15,
        2003: 15,
    }
    assert len(json.loads(dsearch("search", "river", "-k", "100", "--json")[1])["hits"]) == 44


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("search", "a", "--filter", "{year"), "--filter '{year' is not JSON"),
        (
            ("search", "a", "--filter", '{"year": [3]}'),
            "filter.year: [3]; use a value, or an object",
        ),
        (("delete",), "neither ids nor --filter; give one of the two"),
        (("delete", "d1", "--filter", "{}"), "ids and --filter; give one of the two"),
        (("search", "a", "--cursor", "x"), "cursor='x'; use the next_cursor of an answer"),
    ],
)
def test_bad_requests_say_what_is_allowed(dsearch: Terminal, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = dsearch(*arguments)
    assert code != 0
    assert says in err
