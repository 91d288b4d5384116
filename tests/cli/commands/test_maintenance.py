"""Keeping collections: verify, back up, restore, export, compact, purge, migrate, alias, stats, refresh."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder
from support.patience import LATEST_S

from dsearch.cli.commands.maintenance import _writing_to
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.errors import CorruptData, InvalidRequest


@pytest.fixture
def indexed(dsearch: Terminal, beir: Path) -> Terminal:
    code, *_ = dsearch("index", beir, "-c", "papers")
    assert code == 0
    return dsearch


def test_verify_tells_by_its_exit_code(indexed: Terminal, tmp_path: Path) -> None:
    code, out, _ = indexed("verify")
    assert code == 0
    assert out == "papers: whole: 60 documents, 60 embeddings, 2 generations, 0 models\n"
    (keys,) = (tmp_path / "home").glob("papers/generations/000002/keys.faiss")
    content = bytearray(keys.read_bytes())
    content[-1] ^= 1
    keys.write_bytes(content)
    code, out, _ = indexed("verify", "papers")
    assert code == 1
    assert out.startswith("papers: damaged")
    assert "keys.faiss: SHA-256 differs from the manifest" in out
    assert "build the generation again with: dsearch refresh -c papers" in out
    code, out, _ = indexed("verify", "--json")
    assert code == 1
    (report,) = json.loads(out)
    assert not report["ok"]
    code, _, err = indexed("refresh", "-c", "papers")  # what the message tells to do
    assert code == 0, err
    code, _, err = indexed("verify", "nothing")
    assert code == 1
    assert "no collection 'nothing'" in err


def test_what_a_message_tells_to_run_names_the_home_that_was_given(
    indexed: Terminal,
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    (keys,) = home.glob("papers/generations/000002/keys.faiss")
    keys.write_bytes(keys.read_bytes()[:-1])
    code, out, _ = indexed("verify", "papers", "--home", home)
    assert code == 1
    assert f"with: dsearch refresh --home {home} -c papers" in out
    code, _, err = indexed("search", "thing3", "-c", "papers", f"--home={home}")
    assert code == 1
    assert f"dsearch refresh --home {home} -c papers" in err
    told = err.split("dsearch: ")[1]
    command = told[told.index("dsearch refresh") :].split()[:5]
    code, _, err = indexed(*command[1:], "papers")
    assert code == 0, err
    code, out, _ = indexed("verify", "papers", "--home", home)
    assert code == 0, out


def test_the_home_of_an_earlier_command_is_forgotten(dsearch: Terminal, tmp_path: Path) -> None:
    for home in (("--home", tmp_path / "other"), ()):
        code, _, err = dsearch("search", "x", "-c", "papers", *home)
        assert code == 1
        assert ("--home" in err) == bool(home)
        assert err.rstrip().endswith("SOURCE -c papers")


def test_indexing_again_mends_a_damaged_index(indexed: Terminal, beir: Path, tmp_path: Path) -> None:
    (keys,) = (tmp_path / "home").glob("papers/generations/000002/keys.faiss")
    keys.write_bytes(keys.read_bytes()[:-1])
    code, out, err = indexed("index", beir, "-c", "papers")
    assert code == 0, err
    assert "generation 3: 0 new, 0 changed, 60 unchanged" in out
    assert indexed("verify")[0] == 0


def test_recover_goes_on_with_what_is_there(indexed: Terminal, beir: Path, tmp_path: Path) -> None:
    code, out, _ = indexed("recover", "papers")
    assert code == 0
    assert out == "papers: no write is missing; nothing was changed\n"
    folder = tmp_path / "home" / "papers"
    before = {file.name: file.read_bytes() for file in folder.glob("documents.db*")}
    one = tmp_path / "one.jsonl"
    one.write_text('{"_id": "lost", "text": "a zebra"}\n')
    indexed("index", one, "-c", "papers")
    for name, content in before.items():
        (folder / name).write_bytes(content)
    code, _, err = indexed("search", "zebra", "-c", "papers")
    assert code == 1
    assert "acknowledged writes are missing" in err
    assert "dsearch recover" in err
    code, out, err = indexed("recover", "papers")  # what the message tells to do
    assert code == 0, err
    assert "acknowledged writes are missing" in err
    assert "papers: goes on with 60 documents" in out
    code, out, _ = indexed("verify", "papers")
    assert code == 0, out
    indexed("index", one, "-c", "papers")
    code, out, _ = indexed("search", "zebra", "-c", "papers")
    assert code == 0
    assert "lost" in out


def test_a_damaged_collection_hides_no_other(indexed: Terminal, beir: Path, tmp_path: Path) -> None:
    indexed("index", beir, "-c", "others")
    for file in (tmp_path / "home" / "others").glob("documents.db*"):
        file.unlink()
    code, out, _ = indexed("collections")
    assert code == 1
    assert "others: " in out
    assert "documents.db is missing" in out
    assert "papers: 60 documents" in out
    code, out, _ = indexed("collections", "--json")
    assert code == 1
    assert [(one["name"], one.get("problem", {}).get("code")) for one in json.loads(out)] == [
        ("others", "corrupt_data"),
        ("papers", None),
    ]
    code, out, _ = indexed("verify")
    assert code == 1
    assert "others: damaged" in out


def test_backup_and_restore(indexed: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = indexed("backup", tmp_path / "copy", "-c", "papers")
    assert code == 0, err
    assert "60 documents as of operation" in out
    code, _, err = indexed("backup", tmp_path / "copy", "-c", "papers")
    assert code == 1
    assert "give each backup a folder of its own" in err
    (tmp_path / "file").write_text("")
    code, _, err = indexed("backup", tmp_path / "file" / "copy", "-c", "papers")
    assert code == 1
    assert "cannot be written" in err
    code, _, err = indexed("restore", tmp_path / "copy")
    assert code == 1
    assert "exists" in err
    code, out, err = indexed("restore", tmp_path / "copy", "--home", tmp_path / "other")
    assert code == 0, err
    assert out == "papers: 60 documents, generation 2, model v0\n"
    code, out, _ = indexed("verify", "--home", tmp_path / "other")
    assert code == 0
    before = indexed("search", "answer7", "-c", "papers", "--json")[1]
    after = indexed("search", "answer7", "-c", "papers", "--json", "--home", tmp_path / "other")[1]
    assert json.loads(after)["hits"] == json.loads(before)["hits"]


def test_what_is_exported_is_what_was_indexed(indexed: Terminal, beir: Path, tmp_path: Path) -> None:
    code, _, err = indexed("export", "-c", "papers", "-o", tmp_path / "out.jsonl")
    assert code == 0
    assert err == "60 documents\n"
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    given = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    assert {line["_id"]: (line["title"], line["text"]) for line in lines} == {
        line["_id"]: (line["title"], line["text"]) for line in given
    }
    code, _, err = indexed("export", "-c", "papers", "--beir", tmp_path / "folder")
    assert code == 0, err
    code, out, _ = indexed("index", tmp_path / "folder", "-c", "again")
    assert "60 documents" in out
    code, _, err = indexed("export", "-o", "a", "--beir", "b")
    assert code == 1
    assert "give one of the two" in err
    code, _, err = indexed("export", "-c", "papers", "-o", tmp_path / "none" / "x")
    assert code == 1
    assert "cannot be written" in err


def test_an_export_that_fails_leaves_the_one_before(indexed: Terminal, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("an export of before\n")
    for filter in ('{"year": {"about": 1}}', '{"kind": [1]}'):  # malformed
        code, _, err = indexed("export", "-c", "papers", "-o", out, "--filter", filter)
        assert code == 1, err
        assert out.read_text() == "an export of before\n"
        assert list(tmp_path.glob(".*")) == []
    link = tmp_path / "latest.jsonl"
    link.symlink_to(out)
    code, _, err = indexed("export", "-c", "papers", "-o", link)
    assert (code, err) == (0, "60 documents\n")
    assert link.is_symlink()
    assert len(out.read_text().splitlines()) == 60


def test_compact_and_purge(indexed: Terminal, tmp_path: Path) -> None:
    code, out, err = indexed("delete", "d3", "-c", "papers")
    assert code == 0, err
    code, out, _ = indexed("compact", "-c", "papers", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["complete"]
    assert report["bytes_after"] < report["bytes_before"]
    indexed("delete", "d4", "-c", "papers")
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as reader:
        _ = reader.collection("papers").snapshot
        code, _, err = indexed("purge", "-c", "papers")
        assert code == 1
        assert "is read by another process; end that, and run this again" in err
        code, out, _ = indexed("purge", "-c", "papers", "--json")
        assert (code, json.loads(out)["complete"]) == (1, False)
    code, out, _ = indexed("purge", "-c", "papers")
    assert code == 0
    assert out == "papers: 1 deleted row is gone from every file\n"
    assert not any(b"filler4 " in path.read_bytes() for path in tmp_path.glob("home/**/*") if path.is_file())


def test_migrate(indexed: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = indexed("migrate", "-c", "papers", "--encoder", "hashing")
    assert code == 1
    assert "is encoded by hashing already" in err
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder(48, "newer"))
    code, _, err = indexed("search", "answer7", "-c", "papers")
    assert code == 1
    assert "dsearch migrate -c papers --encoder newer" in err
    code, out, err = indexed("migrate", "-c", "papers", "--encoder", "newer")
    assert code == 0, err
    assert "60 documents, 60 encoded by newer" in out
    code, out, _ = indexed("search", "answer7", "-c", "papers", "--json")
    assert code == 0
    assert json.loads(out)["hits"]


def test_stats_and_keys(indexed: Terminal, beir: Path) -> None:
    indexed("delete", "d1", "d2", "d3", "-c", "papers")
    code, out, _ = indexed("stats", "-c", "papers")
    assert code == 0
    assert "documents   57, 0 pending, 3 deleted" in out
    assert "delta       3 since the last build, 5.0% of it" in out
    assert "keys        Flat, recall@10 1.000" in out
    code, out, err = indexed(
        "refresh", "-c", "papers", "--kind", "HNSW", "--recall", "0.95", "--queries", beir / "queries.jsonl"
    )
    assert code == 0, err
    assert "HNSW, ef_search" in out
    code, out, _ = indexed("stats", "-c", "papers", "--json")
    keys = json.loads(out)["keys"]
    assert (keys["kind"], keys["asked"], keys["recall_target"]) == ("HNSW", "HNSW", 0.95)
    code, out, _ = indexed("refresh", "-c", "papers", "--kind", "auto", "--memory", "6000")
    assert "SQ" in out
    assert "(by auto)" in out
    code, out, _ = indexed("refresh", "-c", "papers")  # as before
    assert "(by auto)" in out
    code, _, err = indexed("refresh", "-c", "papers", "--kind", "Fast")
    assert code == 1
    assert "dense kind 'Fast'; use one of Flat" in err


REPORT: dict[str, Any] = {"held": [], "models": [], "kept": 0, "releases": []}


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"held": [3, 4]}, "generation 3, 4 is read by another process; end that, and run this again"),
        ({"models": ["v2"]}, "model v2 has an index of its own with some of them; delete it, or train again"),
        ({"kept": 7}, "7 are needed by a generation; run this again"),
        ({}, "the database's log is read by another process; end that, and run this again"),
    ],
)
def test_what_a_purge_could_not_reach_has_its_own_way_out(
    dsearch: Terminal, monkeypatch: pytest.MonkeyPatch, report: dict[str, Any], told: str
) -> None:
    report = {**REPORT, "rows": 2, "complete": False, **report}
    monkeypatch.setattr("dsearch.cli.commands.maintenance._compacted", lambda *_: report)
    code, out, err = dsearch("purge", "-c", "papers")
    assert (code, out, err) == (1, "", f"papers: 2 deleted rows are gone, but {told}\n")


def test_an_export_into_a_pipe_leaves_it_a_pipe(indexed: Terminal, tmp_path: Path) -> None:
    """So does one to a device, such as /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    code, _, err = indexed("export", "-c", "papers", "-o", pipe)
    assert (code, err) == (0, "60 documents\n")
    assert pipe.is_fifo()
    reader.join(LATEST_S)
    assert len(read[0].splitlines()) == 60


def test_a_reader_of_an_export_that_has_seen_enough_is_no_error() -> None:
    with pytest.raises(BrokenPipeError), _writing_to("standard output"):
        raise BrokenPipeError
    with (
        pytest.raises(InvalidRequest, match=r"^file cannot be written .*give another place$"),
        _writing_to("file"),
    ):
        raise OSError("disk")


@pytest.mark.parametrize(("findings", "shown", "more"), [(20, 20, None), (21, 20, "  and 1 more")])
def test_of_many_findings_the_first_are_shown_and_all_are_counted(
    indexed: Terminal, monkeypatch: pytest.MonkeyPatch, findings: int, shown: int, more: str | None
) -> None:
    problems = [CorruptData(f"file {number} is damaged") for number in range(findings)]

    def verify(engine: SearchEngine, name: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name, ok=False, documents=1, embeddings=1, generations=[1], models=[], problems=problems
        )

    monkeypatch.setattr(SearchEngine, "verify", verify)
    code, out, _ = indexed("verify", "papers")
    lines = out.splitlines()
    assert code == 1
    assert lines[0] == "papers: damaged: 1 document, 1 embedding, 1 generation, 0 models"
    assert lines[1 : 1 + shown] == [f"  file {number} is damaged" for number in range(shown)]
    assert lines[1 + shown :] == ([] if more is None else [more])
