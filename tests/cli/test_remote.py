"""Commands that write, while a server holds the lock: the server does it, and they say so."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.cli.terminal import Terminal
from support.service.service_fakes import serving

from dsearch.cli import engine as engine_module
from dsearch.cli.commands import index as folders_module
from dsearch.cli.commands.serve import bound
from dsearch.cli.engine import HOLDER_NAME, finished, reading, serving_url
from dsearch.client import Client, LocalEngine
from dsearch.engine import SearchEngine
from dsearch.errors import DsearchError, HomeLocked, InvalidRequest
from dsearch.results import Task
from dsearch.types import Document, Progress

pytestmark = pytest.mark.server


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server of the home that `Terminal` uses; its parameter is what it is started with."""
    with serving(tmp_path / "home", **getattr(request, "param", {})) as (origin, _):
        yield origin


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(tmp_path / "home", capsys, monkeypatch)


def test_the_server_does_it(dsearch: Terminal, served: str, tmp_path: Path) -> None:
    source = tmp_path / "some.jsonl"
    lines = [{"id": f"d{i}", "text": f"river stone number{i}"} for i in range(30)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, err = dsearch("index", source, "-c", "papers")
    assert (code, err.splitlines()[0]) == (0, f"the server at {served} runs on this home and does this")
    assert out == "papers: 30 documents, generation 1: 30 new, 0 changed, 0 unchanged\n"
    code, out, err = dsearch(
        "index", source, "-c", "papers", "--json", "--threads", "2", "--encoder", "other"
    )
    assert (code, json.loads(out)["unchanged"], json.loads(out)["documents"]) == (0, 30, 30)
    assert err.splitlines()[1] == "--encoder, --threads are not used: it has settings of its own"
    code, out, err = dsearch("refresh", "-c", "papers")
    assert code == 0
    assert out.startswith("papers: generation 2 is live, with the keys of model v0: Flat")
    code, out, err = dsearch("promote", "v0", "-c", "papers")
    assert (code, out) == (0, "papers: v0 is live now\n")
    code, _, err = dsearch("promote", "v9", "-c", "papers")
    assert code == 1
    assert "no model 'v9'; this collection has v0" in err
    code, out, err = dsearch("models", "-c", "papers")  # reads the files, and needs nobody
    assert (code, out.splitlines()[0], err) == (0, "* v0   untrained", "")
    asked = ("--passage-tokens", "20", "--overlap", "3", "--kind", "SQ8")
    code, out, _ = dsearch("index", source, "-c", "new", *asked, "--json")
    assert (code, json.loads(out)["documents"], json.loads(out)["keys"]["asked"]) == (0, 30, "SQ8")
    assert json.loads(out)["passages"] == {"tokens": 20, "overlap": 3}
    code, _, err = dsearch("index", source, "-c", "new", "--passage-tokens", "30")
    assert (code, "cuts long documents into passages of 20 tokens" in err) == (1, True)


def test_training_by_the_server(dsearch: Terminal, served: str, tmp_path: Path) -> None:
    source, data = tmp_path / "some.jsonl", tmp_path / "judged"
    lines = [
        {"id": f"d{i}", "text": f"river stone number{i}", "metadata": {"side": "left" if i % 2 else "right"}}
        for i in range(30)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (data / "qrels").mkdir(parents=True)
    queries = [{"_id": f"q{i}", "text": f"what is alias{i}?"} for i in range(12)]
    (data / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    pairs = [f"q{i}\td{i}\t1\n" for i in range(12)] + ["q0\tnowhere\t1\n"]
    (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))
    assert dsearch("index", source, "-c", "papers")[0] == 0
    train = ("train", "-c", "papers", "--data", data, "--epochs", "2")
    code, out, err = dsearch(*train, "--accept", "--json")
    assert code == 0, err
    assert f"the server at {served} runs on this home and does this" in err
    assert "nowhere" in err  # judgements are checked as ever
    told = json.loads(out)
    assert (told["version"], told["live"], told["epochs"], told["examples"]) == ("v1", True, 2, 12)
    code, out, _ = dsearch(*train, "--seed", "1")
    verdict, trained = out.splitlines()[:2]
    assert "it is not live, since" in verdict
    assert (code, trained.startswith("papers: v2 trained on 12 queries in ")) == (3, True)
    assert "v2 is stored but not live; try it with --model v2" in out
    code, out, err = dsearch(
        "train", "-c", "papers", "--objective", "context", "--field", "side", "--epochs", "2"
    )
    assert code in (0, 3), err
    assert "v3 learned values of 'side' (label) from 30 documents in " in out
    code, _, err = dsearch(*train, "--threads", "1", "--strict")
    assert (code, "does not take --threads; end it first, or leave that out" in err) == (1, True)
    code, _, err = dsearch(*train, "--strict")
    assert code == 1
    assert "nowhere" in err
    with Client(served) as client:
        assert [one.version for one in client.models("papers").models] == ["v0", "v1", "v2", "v3"]


def test_an_alias_is_no_new_collection_through_the_server(
    dsearch: Terminal, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "some.jsonl"
    source.write_text(json.dumps({"id": "a", "text": "cat", "vec": [1.0, 0.0]}) + "\n")
    with Client(served) as client:
        client.create_collection("items", dimension=2)
        client.set_alias("things", "items")
    code, _, err = dsearch("create", "things", "--dimension", "2")
    assert (code, "'things' is an alias of 'items'; choose another name" in err) == (1, True), err

    code, _, err = dsearch("drop", "things", "--yes")
    assert (code, "'things' is an alias of 'items', which stays" in err) == (1, True), err

    given = ("--embedding-column", "vec")
    code, out, err = dsearch("index", source, "-c", "fresh", *given)  # takes the dimension of the first
    assert (code, out.startswith("fresh: 1 document,")) == (0, True), err
    longer = tmp_path / "longer.jsonl"
    longer.write_text(json.dumps({"id": "b", "text": "dog", "vec": [1.0, 0.0, 0.0]}) + "\n")
    code, out, err = dsearch("index", longer, source, "-c", "fresh", *given)
    assert (code, "1 unchanged, 1 skipped" in out) == (0, True), out
    assert "refused document 1: " in err

    def new(*_: object, **__: object) -> None:
        raise AssertionError("it is there")

    monkeypatch.setattr(folders_module, "with_dimension", new)  # reads before the mirror has learned
    monkeypatch.setattr(Client, "create_collection", new)  # loads an encoder, which such a home may lack
    code, out, err = dsearch("index", source, "-c", "things", "--embedding-column", "vec")
    assert (code, out.startswith("items: 1 document,")) == (0, True), err


def test_what_was_deleted_is_purged_through_the_server(
    dsearch: Terminal, served: str, tmp_path: Path
) -> None:
    """From every generation and from SQLite's free pages, while searches go on, none of which fails."""
    source, home, word = tmp_path / "some.jsonl", tmp_path / "home", b"zanzibar"
    note = {"note": "zanzibar " * 12_000}  # together more than SQLite keeps in its log
    lines = [{"id": f"d{i}", "text": f"stone{i} zanzibar{i}", "metadata": note} for i in range(40)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert dsearch("index", source, "-c", "papers")[0] == 0
    for _ in range(2):
        assert dsearch("refresh", "-c", "papers")[0] == 0
    kept = {"id": "kept", "text": "stone that stays"}
    source.write_text(json.dumps(kept) + "\n")
    assert dsearch("index", source, "-c", "papers")[0] == 0
    assert dsearch("delete", "-c", "papers", *(f"d{i}" for i in range(40)))[0] == 0
    holding = [path.name for path in files_of(home) if word in path.read_bytes()]
    assert {"documents.db", "documents.db-wal", "vocabulary.json"} <= set(holding), holding
    found, problems, over = [], [], threading.Event()

    def search() -> None:
        with Client(served, retries=0) as client:
            while not over.is_set():
                try:
                    found.append([hit.id for hit in client.search("papers", "stone").hits])
                except DsearchError as error:
                    problems.append(error)

    searching = threading.Thread(target=search)
    searching.start()
    try:
        code, out, err = dsearch("purge", "-c", "papers")
    finally:
        over.set()
        searching.join()
    assert (code, out) == (0, "papers: 40 deleted rows are gone from every file\n"), err
    assert (problems, set(map(tuple, found))) == ([], {("kept",)})
    assert [path.name for path in files_of(home) if word in path.read_bytes()] == []
    assert len(list((home / "papers" / "generations").iterdir())) == 1
    code, out, _ = dsearch("compact", "-c", "papers", "--json")
    assert (code, json.loads(out)["complete"], json.loads(out)["rows"]) == (0, True, 0)
    assert dsearch("verify", "papers")[0] == 0


@pytest.mark.parametrize("served", [{"next_encoder": True}], indirect=True)
def test_migrating_by_the_server(dsearch: Terminal, served: str, tmp_path: Path) -> None:
    source = tmp_path / "some.jsonl"
    lines = [{"id": f"d{i}", "text": f"river stone{i}"} for i in range(20)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert dsearch("index", source, "-c", "papers")[0] == 0
    code, _, err = dsearch("migrate", "-c", "papers", "--encoder", "other")
    assert code == 1
    assert "this server moves collections to 'newer'; set next_encoder in its settings" in err
    code, out, err = dsearch("migrate", "-c", "papers", "--encoder", "newer")
    assert code == 0, err
    assert "papers: 20 documents, 20 encoded by newer in " in out
    assert "not used" not in err  # the encoder is what it was asked for
    assert "The server answers with it; when all collections are moved, set encoder to newer" in out
    with Client(served) as client:
        assert client.collection("papers").encoder["name"] == "newer"
        assert client.search("papers", "stone7", limit=1).hits[0].id == "d7"
    code, _, err = dsearch("migrate", "-c", "papers", "--encoder", "newer")
    assert (code, "the server's migration of papers has failed" in err) == (1, True)
    assert "is encoded by newer already" in err


def files_of(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]


def test_a_collection_that_is_not_there_is_made_by_a_command(dsearch: Terminal, served: str) -> None:
    """Not by the route that the server's message names."""
    for command in (("search", "stone", "-c", "none"), ("drop", "none", "--yes")):
        code, _, err = dsearch(*command)
        assert (code, "PUT /v1" in err) == (1, False)
        assert "no collection 'none'; there is none yet. Make one with: dsearch index SOURCE -c none" in err


def test_what_a_server_does_not_do_is_said(dsearch: Terminal, served: str, tmp_path: Path) -> None:
    code, _, err = dsearch("restore", tmp_path / "copy")
    assert code == 1
    assert f"the server at {served} runs on this home; no request may name a folder of its machine" in err
    assert f"dsearch restore {tmp_path / 'copy'} --home FOLDER" in err
    code, _, err = dsearch("demo", "--no-serve")
    assert (code, "end that server first, or show it in a home of its own" in err) == (1, True)
    (tmp_path / "some.jsonl").write_text(json.dumps({"id": "a", "text": "cat"}) + "\n")
    code, _, err = dsearch("index", tmp_path / "some.jsonl", "--ray", "auto")
    assert (code, "leave out --ray, or end it first" in err) == (1, True)


def test_a_lock_that_no_server_holds_stays_an_error(dsearch: Terminal, tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home") as engine:
        code, _, err = dsearch("promote", "v0", "-c", "papers")
        assert (code, "is being written by process" in err, "http" in err.lower()) == (1, True, True)
        engine.home.announce("http://127.0.0.1:9")
        holder = tmp_path / "home" / "LOCK.holder"
        there = json.loads(holder.read_text())
        with pytest.raises(HomeLocked) as locked:
            SearchEngine(tmp_path / "home")
        assert locked.value.url == "http://127.0.0.1:9"
        holder.write_text(json.dumps({**there, "host": "another"}))  # a home that machines share
        with pytest.raises(HomeLocked) as locked:
            SearchEngine(tmp_path / "home")
        assert locked.value.url is None
        holder.write_text("{")
        with pytest.raises(HomeLocked, match="another process"):
            SearchEngine(tmp_path / "home")
    assert not holder.exists()


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"cannot listen at 127.0.0.1:{port} .* use another --port"):
            bound("127.0.0.1", port)
    with bound("127.0.0.1", 0) as listening:
        assert listening.getsockname()[1] > 0


def test_an_interrupted_command_cancels_its_task(dsearch: Terminal, served: str, tmp_path: Path) -> None:
    source = tmp_path / "some.jsonl"
    source.write_text('{"id": "d1", "text": "river"}\n')
    assert dsearch("index", source, "-c", "papers")[0] == 0
    with Client(served) as client:
        task = client.refresh("papers")
        client.wait_for_task(task.id)
        cancelled: list[str] = []

        class Interrupted:
            def wait_for_task(self, *_: object, **__: object) -> Task:
                raise KeyboardInterrupt

            def cancel_task(self, id: str) -> None:
                cancelled.append(id)

        with pytest.raises(KeyboardInterrupt):
            finished(Interrupted(), task)  # type: ignore[arg-type]
        assert cancelled == [task.id]


def test_a_folder_is_mirrored_through_the_server(dsearch: Terminal, served: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(12):
        (notes / f"n{number:02}.md").write_text(f"river stone{number}")
    assert dsearch("index", notes, "-c", "notes")[1].startswith("notes: 12 documents")
    (notes / "n00.md").unlink()
    (notes / "n01.md").rename(notes / "renamed.md")
    code, out, err = dsearch("index", notes, "-c", "notes")
    assert (code, "0 new, 1 changed, 10 unchanged, 1 deleted" in out) == (0, True), err
    with Client(served) as client:
        assert client.get("notes", "n01.md").metadata["path"] == "renamed.md"
    for number in range(2, 6):
        (notes / f"n{number:02}.md").unlink()
    code, _, err = dsearch("index", notes, "-c", "notes")
    assert (code, "gone from the folder: 4 of 11 documents" in err) == (1, True)
    assert "7 documents" in dsearch("index", notes, "-c", "notes", "--yes")[1]
    code, _, err = dsearch("index", "-c", "notes")
    assert (code, "name a file or a folder; to finish an interrupted run, end it first" in err) == (1, True)
    assert "this deletes notes (7 documents) for good; add --yes" in dsearch("drop", "notes")[2]
    assert dsearch("drop", "notes", "--yes")[1] == "notes: dropped, with 7 documents\n"
    assert "created" in dsearch("create", "notes")[1]
    assert json.loads(dsearch("create", "cut", "--overlap", "0", "--json")[1])["passages"]["overlap"] == 0
    assert "exists" in dsearch("create", "notes")[2]


def test_a_running_server_answers_what_only_reads(
    dsearch: Terminal, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(served) as client:
        client.create_collection("papers")
        client.upsert("papers", [Document(f"d{n}", f"river stone{n}", metadata={"n": n}) for n in range(4)])
        client.set_alias("texts", "papers")

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("no engine is loaded beside a server")

    monkeypatch.setattr(engine_module, "opened_engine", opened)
    code, out, _ = dsearch("search", "river", "-c", "papers", "--json")
    assert (code, len(json.loads(out)["hits"])) == (0, 4)
    code, out, err = dsearch("search", "+nowhere", "-c", "papers")
    assert (code, out) == (0, "")
    assert "nothing was found" in err
    code, out, _ = dsearch("similar", "d1", "-c", "papers", "--json")
    assert (code, len(json.loads(out)["hits"])) == (0, 3)
    code, out, _ = dsearch("facets", "n", "-c", "papers", "--json")
    assert json.loads(out)["documents"] == 4
    code, out, _ = dsearch("stats", "-c", "papers", "--json")
    assert (json.loads(out)["documents"], json.loads(out)["aliases"]) == (4, ["texts"])
    code, _, err = dsearch("search", "river", "-c", "nothing")
    assert code == 1
    assert "there are: papers" in err
    with pytest.raises(AssertionError, match="no engine"):
        dsearch("search", "river", "-c", "papers", "--threads", "1")


def test_a_server_that_is_gone_or_closed_to_this_key_is_passed_over(tmp_path: Path) -> None:
    assert serving_url(tmp_path) is None
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": "x", "url": "http://127.0.0.1:9"}
    (tmp_path / HOLDER_NAME).write_text(json.dumps(holder))
    assert serving_url(tmp_path) == "http://127.0.0.1:9"
    with reading(tmp_path) as engine:
        assert isinstance(engine, LocalEngine)  # nobody answers there
    for broken in (
        {**holder, "url": None},
        {**holder, "host": "elsewhere"},
        {**holder, "pid": 2**22 + 1},
        {},
    ):
        (tmp_path / HOLDER_NAME).write_text(json.dumps(broken))
        assert serving_url(tmp_path) is None


class _CountingClient:
    """A client that reads all documents."""

    def collections(self) -> list[object]:
        return []

    def aliases(self) -> dict[str, str]:
        return {}

    def create_collection(self, name: str, **options: object) -> None:
        pass

    def collection(self, name: str) -> str:
        return name

    def upsert(self, name: str, documents: Iterator[Document]) -> int:
        return len(list(documents))


def test_sending_tells_its_progress_from_the_first_second_to_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[Progress] = []
    monkeypatch.setattr(folders_module, "ProgressBars", lambda: nullcontext(steps.append))
    monkeypatch.setattr(folders_module, "_TELL_EVERY_S", 0.0)
    documents = iter([Document(str(number), "x") for number in range(3)])
    client: Any = _CountingClient()
    assert folders_module.index_by_server(client, "papers", documents, {}) == ("papers", 3)
    counts = [(step.stage, step.done) for step in steps]
    assert counts == [("send", 0), ("send", 1), ("send", 2), ("send", 3), ("server", 3)]
