"""The first hour on one's own data: the commands of the guide getting-started on real mixed files.

They are Python's own library and its documentation, a table, mail, a notebook, a page, and text in an older
encoding.
"""

from __future__ import annotations

import csv
import json
import pydoc
import shutil
import sysconfig
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.encoder import Encoder

MODULES = ("bisect", "heapq", "queue", "sched", "shelve", "shlex", "stat", "string", "textwrap", "timeit")


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    return Terminal(tmp_path / "home", capsys, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty-some files of nine kinds."""
    root = tmp_path / "mine"
    (root / "lib").mkdir(parents=True)
    (root / "docs").mkdir()
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in MODULES:
        shutil.copy(library / f"{name}.py", root / "lib")
        text = pydoc.plain(pydoc.render_doc(name))
        (root / "docs" / f"{name}.rst").write_text(f"{name}\n{'=' * len(name)}\n\n{text}")
    with (root / "modules.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "bytes"])
        table.writerows([name, f"module {name}", (library / f"{name}.py").stat().st_size] for name in MODULES)
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "ann@example.org", "bob@example.org", "Re: priority queues"
    mail.set_content("Use the heap, Bob.")
    (root / "mail.eml").write_bytes(mail.as_bytes())
    (root / "latin.txt").write_bytes("Ein Käufer übernimmt die Größe".encode("cp1252"))
    cells = [{"cell_type": "code", "source": "heappush(heap, 3)"}]
    (root / "try.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}}))
    (root / "setup.toml").write_text('name = "mine"\n')
    (root / "picture.png").write_bytes(b"\x89PNG")
    return root


def index(dsearch: Terminal, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    ended, out, err = dsearch("index", *arguments, "-c", "mine", "--json")
    assert ended == code, err
    return json.loads(out)


def hits(dsearch: Terminal, query: str, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = dsearch("search", query, "-c", "mine", "--mode", "keyword", "--json", *arguments)
    assert code == 0, err
    return json.loads(out)["hits"]


def test_the_first_hour(dsearch: Terminal, folder: Path, tmp_path: Path) -> None:
    report = index(dsearch, folder)
    assert (report["documents"], report["skipped"], report["passed_over"]) == (34, 0, {".png": 1})

    # It is found, whatever it came from, with the metadata of its file.
    assert [hit["id"] for hit in hits(dsearch, "Käufer")] == ["latin.txt"]
    (mail,) = hits(dsearch, "Bob", "--filter", '{"type": {"eq": "mail"}}')
    assert (mail["title"], mail["metadata"]["from"]) == ("Re: priority queues", "ann@example.org")
    large = {hit["id"] for hit in hits(dsearch, "module", "--filter", '{"bytes": {"gte": 10000}}')}
    library = Path(sysconfig.get_paths()["stdlib"])
    assert large == {name for name in MODULES if (library / f"{name}.py").stat().st_size >= 10_000}
    counted = json.loads(dsearch("facets", "type", "folder", "-c", "mine", "--json")[1])["facets"]
    assert {one["value"]: one["documents"] for one in counted["type"]}["python"] == 10
    assert {one["value"]: one["documents"] for one in counted["folder"]} == {"": 4, "docs": 10, "lib": 10}
    assert "priority queues" in dsearch("show", "mail.eml", "-c", "mine")[1]

    # A second folder with files of the same names replaces nothing.
    other = tmp_path / "other"
    (other / "lib").mkdir(parents=True)
    (other / "lib" / "heapq.py").write_text("# a heap of one's own, of pebbles\n")
    assert index(dsearch, other)["inserted"] == 1
    assert [hit["id"] for hit in hits(dsearch, "pebbles")] == ["other/lib/heapq.py"]
    assert index(dsearch, folder)["unchanged"] == 34

    # Renamed: the id stays, and so what was judged. Deleted: gone. Changed: changed.
    (folder / "lib").rename(folder / "library")
    (folder / "docs" / "timeit.rst").unlink()
    (folder / "latin.txt").write_text("Ein Verkäufer")
    report = index(dsearch, folder)
    counts = {name: report[name] for name in ("inserted", "deleted", "renamed", "documents")}
    assert counts == {"inserted": 0, "deleted": 1, "renamed": 10, "documents": 34}
    (heap,) = [hit for hit in hits(dsearch, "heappush", "-k", "20") if hit["id"] == "lib/heapq.py"]
    assert heap["metadata"]["path"] == "library/heapq.py"
    assert hits(dsearch, "Käufer") == []

    # Much is gone: nothing happens without consent, and the other folder is never touched.
    shutil.rmtree(folder / "docs")
    code, _, err = dsearch("index", folder, "-c", "mine")
    assert (code, "gone from the folder: 9 of 33 documents" in err) == (1, True)
    assert index(dsearch, folder, "--yes")["deleted"] == 9
    assert [hit["id"] for hit in hits(dsearch, "pebbles")] == ["other/lib/heapq.py"]

    # Judgements as a table, and the end.
    judged = tmp_path / "judged.csv"
    judged.write_text("query,document,grade\nwhat to do Bob,mail.eml,1\nheappush,lib/heapq.py,2\n")
    report = json.loads(dsearch("evaluate", "-c", "mine", "--data", judged, "--json")[1])
    assert report["lines"][0]["queries"] == 2
    assert dsearch("drop", "mine", "--yes")[1] == "mine: dropped, with 25 documents\n"


def test_a_page_is_read_with_its_extra(dsearch: Terminal, folder: Path) -> None:
    pytest.importorskip("trafilatura")
    body = "The heap keeps its smallest item in front. " * 10
    (folder / "page.html").write_text(f"<html><title>Heaps</title><body><p>{body}</p></body></html>")
    index(dsearch, folder)
    assert [hit["title"] for hit in hits(dsearch, "smallest", "--filter", '{"type": {"eq": "html"}}')] == [
        "Heaps"
    ]
