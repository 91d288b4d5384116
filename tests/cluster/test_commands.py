"""What the guide says to type, typed: a folder is indexed, a cluster started, asked over HTTP and stopped.

The service on Ray Serve has the routes and answers of one machine, from shards: a client notices nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.patience import LATEST_S
from support.ports import free_port
from support.tiny_encoder import WORDS, write_tiny_encoder
from support.warm.processes import WarmProcess, warm_start

import dsearch
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.errors import Conflict, NotInCluster

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


class Terminal:
    """Commands in processes of their own, with a Ray of their own; what is left is killed at the end."""

    def __init__(self, folder: Path, ray_folder: str):
        self.mark = f"RAY_TMPDIR={ray_folder}".encode()
        self.environment = {
            **os.environ,
            "RAY_TMPDIR": ray_folder,
            "DSEARCH_HOME": str(folder / "home"),
            "DSEARCH_ENCODER": str(write_tiny_encoder(folder / "encoder")),
            "DSEARCH_BACKEND": "torch",
            "DSEARCH_THREADS": "1",
        }

    def start(self, *arguments: str) -> WarmProcess:
        command = [sys.executable, "-c", "from dsearch.cli import main; main()", *arguments]
        pipe = subprocess.PIPE
        return warm_start()(command, stdout=pipe, stderr=pipe, text=True, env=self.environment)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=LATEST_S)
        return process.returncode, out, err

    def left(self) -> list[int]:
        """Processes that began with our environment: those of Ray, for a fork has that of its origin."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self.mark in path.read_bytes().split(b"\0") and path.parent.name != str(os.getpid()):
                    found.append(int(path.parent.name))
        return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    ray_folder = tempfile.mkdtemp(prefix="dr")  # sockets lie there, whose paths must be short
    made = Terminal(tmp_path, ray_folder)
    try:
        yield made
    finally:
        for process in made.left():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(ray_folder, ignore_errors=True)


def judgements(folder: Path) -> Path:
    """A BEIR folder in which the word of a query is in the documents that answer it."""
    (folder / "qrels").mkdir(parents=True)
    queries = [{"_id": f"q{i}", "text": f"about {WORDS[i]}"} for i in range(12)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    pairs = "".join(f"q{i}\td{i + 5}\t1\n" for i in range(12))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + pairs)
    return folder


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to see what is left")
def test_start_serve_status_and_stop(terminal: Terminal, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    lines = [
        {"id": f"d{i}", "text": f"{WORDS[i % len(WORDS)]} {WORDS[i % 5]} {i}", "metadata": {"n": i}}
        for i in range(40)
    ]
    notes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert terminal("index", str(notes), "-c", "papers")[0] == 0
    address = f"127.0.0.1:{free_port()}"
    code, _, err = terminal("cluster", "status", "--ray", address)
    assert (code, err) == (
        1,
        f"dsearch: nothing listens at {address}; start Ray there with: ray start --head\n",
    )

    code, out, err = terminal(
        *("cluster", "start", "-c", "papers", "--shards", "2", "--replicas", "2", "--ray", address)
    )
    assert code == 0, err
    assert "no Ray runs there; starting one that only this machine reaches" in err
    assert f"answers from 2 shards; serve it with: dsearch serve --ray {address}" in out
    code, out, _ = terminal("cluster", "status", "--ray", address, "--json")
    assert [one["copies"] for one in json.loads(out)] == [[[True, True], [True, True]]]
    shards = [pid for pid in terminal.left() if b"ShardActor" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(shards) == 4
    # As we are: Ray would put them behind everything else on the machine, and searches wait for them.
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in shards} == {os.getpriority(os.PRIO_PROCESS, 0)}

    serving = terminal.start("serve", "--ray", address, "--port", "0")
    assert serving.stderr is not None
    told = next(line for line in serving.stderr if "serves at" in line)
    url = told.split("serves at ")[1].split()[0]
    encoder = Encoder.load(terminal.environment["DSEARCH_ENCODER"])
    with (
        SearchEngine(tmp_path / "home", readonly=True, encoder=lambda: encoder) as engine,
        dsearch.Client(url, timeout_s=60) as client,
    ):
        alone = engine.collection("papers")
        for options in ({}, {"mode": "dense", "limit": 3}, {"filter": {"n": {"gte": 20}}}):
            found = client.search("papers", "apple red 7", **options)
            expected = alone.search("apple red 7", **options)
            assert [hit.id for hit in found.hits] == [hit.id for hit in expected.hits]
            assert [hit.weight for hit in found.hits] == pytest.approx(
                [hit.weight for hit in expected.hits], abs=1e-5
            )
        with pytest.raises(NotInCluster):
            client.attend("papers", ["apple"])
        with pytest.raises(Conflict, match="readonly"):
            client.delete("papers", "d1")

    data = judgements(tmp_path / "judgements")
    code, out, err = terminal(
        *(
            "train",
            "-c",
            "papers",
            "--data",
            str(data),
            "--ray",
            address,
            "--epochs",
            "3",
            "--accept",
            "--json",
        )
    )
    assert code == 0, err
    trained = json.loads(out)
    assert (trained["live"], trained["epochs"]) == (True, 3)
    with dsearch.Client(url, timeout_s=60) as client:  # it answers from the shards as they are
        assert client.search("papers", "apple red 7").stamp.model == trained["version"]
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(timeout=LATEST_S) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=2)

    assert terminal("cluster", "stop", "--ray", address)[:2] == (0, "stopped, and Ray too\n")
    until = time.monotonic() + LATEST_S
    while terminal.left() and time.monotonic() < until:
        time.sleep(0.2)
    assert not terminal.left()
