"""An indexing that was interrupted: every answer says so, and names the command that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.encoder import Encoder


class Interrupted(HashingEncoder):
    """As if the person at the terminal pressed Ctrl-C while documents are encoded."""

    def encode_documents(self, *arguments, **options):  # type: ignore[no-untyped-def]
        raise KeyboardInterrupt


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{i}", "text": f"river stone{i}"}) + "\n" for i in range(5)))
    return path


def test_what_waits_is_told_and_done(
    dsearch: Terminal, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Encoder.load
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: Interrupted())
    code, _, err = dsearch("index", source, "-c", "t")
    assert code == 130
    command = "dsearch index -c t"
    stands = "dsearch: interrupted; documents that were written stay; to go on, run it again: "
    assert err.splitlines() == [
        f"5 documents cannot be found yet; go on with: {command}",
        f"{stands}dsearch index {source} -c t",
    ]
    monkeypatch.setattr(Encoder, "load", whole)
    code, out, err = dsearch("search", "river", "-c", "t")
    assert (code, out) == (0, "")
    assert err == f"5 documents cannot be found yet; go on with: {command}\n"  # no filter is to blame
    home = str(tmp_path / "home")
    assert (
        f"go on with: dsearch index --home {home} -c t"
        in dsearch("search", "x", "-c", "t", "--home", home)[2]
    )
    waiting = json.loads(dsearch("search", "river", "-c", "t", "--json")[1])["waiting"]
    assert waiting == {"documents": 5, "hint": {"name": "index", "arguments": ["-c", "t"]}}
    assert command in dsearch("collections")[2]

    code, out, _ = dsearch("index", "-c", "t")
    assert code == 0
    assert "5 documents" in out
    assert "5 encoded" in out
    code, _, err = dsearch("search", "river", "-c", "t")
    assert (code, "go on with" in err) == (0, False)
    assert json.loads(dsearch("similar", "d1", "-c", "t", "--json")[1])["waiting"] is None
    assert "no documents were waiting" in dsearch("index", "-c", "t")[2]


def test_going_on_needs_a_collection(dsearch: Terminal) -> None:
    code, _, err = dsearch("index", "-c", "nowhere")
    assert (code, "no collection 'nowhere'" in err) == (1, True)


def test_nothing_found_says_so(dsearch: Terminal, source: Path) -> None:
    dsearch("index", source, "-c", "t")
    code, out, err = dsearch("search", "absent", "-c", "t", "--mode", "keyword")
    assert (code, out) == (0, "")
    assert err.startswith("nothing was found; leave out a filter, quotes or signs, or try other words\n")
