"""Python processes that start warm, as forks of one that has imported torch and computed nothing.

    process = warm_start()([sys.executable, "server.py", "home"], stdout=subprocess.PIPE, text=True)

Importing takes a cold process two to six seconds, a fork some milliseconds. The forked process has the
environment, the folder and the streams of the request, and ends as an interpreter does. `preload.py` forks,
`command.py` starts a warm process from a shell. This module needs the standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

VARIABLE = "WARM_PROCESSES"  # the address of the process that forks, for processes below
SHARED = "WARM_FOLDER"  # where the processes of a test run find the one that forks for all of them
SOCKET, LEASES, LOCK = "socket", "leases", "lock"
COMMANDS = ("evaluate", "feedback", "index", "maintenance", "models", "search", "serve", "train")
# The modules that dsearch imports late, and what the encoder imports when it loads its weights.
LATE = (
    "dsearch.cli.grouped_help",
    *(f"dsearch.cli.commands.{name}" for name in COMMANDS),
    "dsearch.cli.options",
    "dsearch.cli.commands.index",
    "dsearch.cli.grouped_help",
    "dsearch.cli.output",
    "dsearch.cli.engine",
    "dsearch.cli.training",
    "dsearch.cli.training",
    "dsearch.client.http",
    "dsearch.config",
    "dsearch.engine.calls",
    "dsearch.engine.maintenance",
    "dsearch.engine.ranking.explain",
    "dsearch.service.app",
    "dsearch.service.server",
    "dsearch.service.tasks.jobs",
    "dsearch.training",
    "jsonschema",
    "pydantic_settings",
    "sentence_transformers.sentence_transformer.modules",
    "transformers.models.align",
    "transformers.models.bert.modeling_bert",
    "sklearn.metrics",
    "uvicorn.lifespan.on",
    "httptools",
    "support.service.service_fakes",
    "support.warm.built",
)


@functools.cache
def warm_start() -> WarmStart:
    """The one of this process; the process that forks is that of the test run, if it has one."""
    shared = os.environ.get(SHARED)
    start = WarmStart(Path(shared) if shared else None)
    atexit.register(start.close)
    return start


class WarmStart:
    """Starts warm processes by `start(command, …)`; the first call starts or joins the process that forks.

    Args:
        folder: where others share that process, which ends when the last of them does; None for one's own.
        modules: what it imports.
    """

    def __init__(self, folder: Path | None = None, modules: Sequence[str] = LATE) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="warm-")
        self._folder = folder or Path(self._own.name if self._own else "")
        self._modules = modules
        self._lease: int | None = None
        self._preload: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The socket of the process that forks, which is ready."""
        with self._lock:
            if self._lease is None:
                with (self._folder / LOCK).open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    self._lease = self._joined() or self._started()
            return str(self._folder / SOCKET)

    def __call__(self, command: Sequence[str | os.PathLike[str]], **options: Any) -> WarmProcess:
        return WarmProcess(self.address, command, **options)

    def close(self) -> None:
        """End the process that forks, and what it forked, unless others still use it."""
        if self._lease is not None:
            os.close(self._lease)
        if self._preload is not None:
            assert self._preload.stdout is not None
            self._preload.stdout.close()
            if self._own is not None:
                self._preload.wait()
        if self._own is not None:
            self._own.cleanup()

    def _joined(self) -> int | None:
        """A lease on a process that another one has started."""
        try:
            return os.open(self._folder / LEASES, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # there is none, or nobody reads it any more
            return None

    def _started(self) -> int:
        leases = self._folder / LEASES
        for name in (leases, self._folder / SOCKET):
            name.unlink(missing_ok=True)
        os.mkfifo(leases)
        reads = os.open(leases, os.O_RDONLY | os.O_NONBLOCK)
        lease = os.open(leases, os.O_WRONLY)
        program = str(Path(__file__).with_name("preload.py"))
        self._preload = subprocess.Popen(
            [sys.executable, "-B", program, str(self._folder), *self._modules],
            stdin=reads,
            stdout=subprocess.PIPE,
            env=_without_address(),
        )
        os.close(reads)
        assert self._preload.stdout is not None
        assert self._preload.stdout.readline() == b"ready\n", "the process that forks did not start"
        return lease


class WarmProcess:
    """A process forked on request; what the tests use of `subprocess.Popen`.

    Args:
        address: of the process that forks.
        command: an interpreter, and what it runs: `-c CODE`, `-m MODULE …` or `FILE …`.
        stdin, stdout, stderr: None, DEVNULL, PIPE (not stdin) or a descriptor.
        text: pipes of text rather than of bytes.
        env: None for that of this process.
        cwd: None for that of this process.
        pass_fds: descriptors that it has under the same numbers.
    """

    def __init__(
        self,
        address: str,
        command: Sequence[str | os.PathLike[str]],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        text: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        pass_fds: Sequence[int] = (),
    ):
        self.args = [os.fspath(word) for word in command]
        self.returncode: int | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._lock = threading.Lock()
        ours: list[int] = []
        streams = [_end(stdin, 0, ours), _end(stdout, 1, ours), _end(stderr, 2, ours)]
        if stdout == subprocess.PIPE:
            self.stdout = os.fdopen(_reader(streams, 1, ours), "r" if text else "rb")
        if stderr == subprocess.PIPE:
            self.stderr = os.fdopen(_reader(streams, 2, ours), "r" if text else "rb")
        request = {
            "command": self.args[1:],
            "environment": dict(os.environ if env is None else env) | {VARIABLE: address},
            "folder": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "numbers": [0, 1, 2, *pass_fds],
        }
        try:
            self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._channel.connect(address)
            body = json.dumps(request).encode()
            socket.send_fds(self._channel, [len(body).to_bytes(4, "big")], [*streams, *pass_fds])
            self._channel.sendall(body)
        finally:
            for descriptor in ours:
                os.close(descriptor)
        self.pid = int(self._number())

    def _number(self) -> bytes:
        """The line with its process number, byte by byte: it may have ended, and its status follow."""
        line = b""
        while not line.endswith(b"\n"):
            more = self._channel.recv(1)
            assert more, "the process that forks is gone"
            line += more
        return line

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; below zero, the signal that killed it."""
        with self._lock:
            if self.returncode is None:
                self._channel.settimeout(timeout if timeout is None else max(timeout, 1e-6))
                try:
                    line = self._channel.recv(32)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
                assert line.endswith(b"\n"), "the process that forks is gone"
                self.returncode = int(line)
                self._channel.close()
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it prints, when it has ended."""
        output: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str, stream: IO[Any]) -> None:
            with stream:
                output[name] = stream.read()

        threads = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self.stdout), ("stderr", self.stderr))
            if stream is not None and not stream.closed
        ]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return output["stdout"], output["stderr"]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its status is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_warm(
    command: Sequence[str | os.PathLike[str]], timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with output as text, by a warm process."""
    process = warm_start()(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    output, errors = process.communicate(timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


class WarmSubprocess:
    """In place of the module `subprocess` in `dsearch.processes`: `run_spawned` starts warm processes."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, start: Callable[..., WarmProcess]):
        self.Popen = start


def _end(given: int | None, number: int, ours: list[int]) -> int:
    """A descriptor for the child's stream; those that are opened here are appended to `ours`."""
    if given is None:
        return number
    if given == subprocess.PIPE:
        return -1  # `_reader` makes it
    if given == subprocess.DEVNULL:
        ours.append(os.open(os.devnull, os.O_RDWR))
        return ours[-1]
    return given


def _reader(streams: list[int], number: int, ours: list[int]) -> int:
    reads, writes = os.pipe()
    ours.append(writes)
    streams[number] = writes
    return reads


def _without_address() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != VARIABLE}
