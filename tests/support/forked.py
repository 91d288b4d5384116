"""Processes forked from one that has imported what they run: importing takes a second, a trial a fraction.

`Forks` is for tests: it runs a module's `main()` in a process of its own, watched by strace if asked. Run as
a program, `python forked.py FOLDER MODULE …`, this is the process that forks. It imports the modules, calls
`prepare()` of those that have one, and reads lines of JSON, `{"program", "arguments", "out"}`; it prints the
pid of the process that does it, which has stopped itself until SIGCONT, and on the next line read waits for
its end and prints its exit status (below zero: the signal).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

CALLS = (
    "write,pwrite64,pwritev,fsync,fdatasync,ftruncate,fallocate,unlink,unlinkat,rename,renameat,mkdir,rmdir,"
    "link,copy_file_range,sendfile"
)

WAIT_S = 120  # for a line, many times what it takes


class Forks:
    """Runs `main()` of one of `modules`, which lie in `folder`, as often as asked, in new processes."""

    def __init__(self, folder: Path, *modules: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-B", __file__, str(folder), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout
        assert self._server.stdout.readline() == "ready\n"

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()

    def run(
        self,
        program: str,
        arguments: Sequence[object],
        out: Path,
        *,
        strace: Sequence[str] | None = None,
        kill: Callable[[Path], None] | None = None,
    ) -> tuple[int, list[str]]:
        """(exit status, the lines that it printed whole); `out` is where its standard output goes meanwhile.

        It is killed when `kill`, which is given `out`, returns.
        """
        out.unlink(missing_ok=True)
        asked = {"program": program, "arguments": [str(one) for one in arguments], "out": str(out)}
        pid = int(self._say(json.dumps(asked)))
        _wait_until_stopped(pid)
        tracer = None
        if strace is not None:
            tracer = subprocess.Popen(
                ["strace", "-f", "-qq", *strace, "-p", str(pid)], stderr=subprocess.PIPE
            )
            while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
                assert tracer.poll() is None, tracer.communicate()[1].decode()
                time.sleep(0.001)
        os.kill(pid, signal.SIGCONT)
        if kill is not None:
            kill(out)
            os.kill(pid, signal.SIGKILL)
        status = int(self._say(""))
        if tracer is not None:
            tracer.communicate()
        return status, lines_of(out.read_bytes() if out.exists() else b"")

    def calls(self, program: str, arguments: Sequence[object], scratch: Path) -> list[tuple[str, int]]:
        """The calls by which its first thread changes files, in order: (name, how many of that name so far).

        What `run` takes as `strace=killing(call)` to end it there.
        """
        trace = scratch / "trace"
        watched = ["-o", str(trace), "-e", f"trace={CALLS}"]
        status, lines = self.run(program, arguments, scratch / "trace.out", strace=watched)
        assert status == 0, lines
        points: list[tuple[str, int]] = []
        seen: dict[str, int] = {}
        first = None
        for line in trace.read_text(errors="replace").splitlines():
            thread, _, rest = line.partition(" ")
            call, bracket, _ = rest.strip().partition("(")
            first = first or thread
            if bracket and call in CALLS.split(",") and thread == first:  # another thread counts its own
                seen[call] = seen.get(call, 0) + 1
                points.append((call, seen[call]))
        return points

    def _say(self, line: str) -> str:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()


def killing(point: tuple[str, int]) -> list[str]:
    """strace's options that kill on entry to a call, which is then never made."""
    return injecting(*point, "signal=KILL")


def injecting(call: str, when: object, what: str) -> list[str]:
    """strace's options that do something else in place of a call."""
    return ["-o", "/dev/null", "-e", f"inject={call}:{what}:when={when}"]


def lines_of(output: bytes) -> list[str]:
    """The whole lines of what a killed process printed."""
    return [line.decode().rstrip("\n") for line in output.splitlines(keepends=True) if line.endswith(b"\n")]


def said(line: str) -> Callable[[Path], None]:
    """What `run` takes as `kill`, to end a process that has printed a line: it should wait there."""

    def wait(out: Path) -> None:
        until = time.monotonic() + WAIT_S
        while line not in (lines := lines_of(out.read_bytes() if out.exists() else b"")):
            assert time.monotonic() < until, f"it never said {line!r}, but {lines}"
            time.sleep(0.001)

    return wait


def in_memory() -> str | None:
    """Where temporary files are memory, if anywhere: a kill leaves the same there, and syncing is free."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _wait_until_stopped(pid: int) -> None:
    while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.0005)


# ---- the process that forks


def main() -> None:
    sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]
    from dsearch.threads import set_threads

    set_threads(1)  # nothing forks after threads have run
    modules = {name: importlib.import_module(name) for name in sys.argv[2:]}
    for module in modules.values():
        if hasattr(module, "prepare"):
            module.prepare()
    assert len(os.listdir("/proc/self/task")) == 1
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(modules[asked["program"]].main, asked)
        print(pid, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(main: Callable[[], None], asked: dict[str, object]) -> None:
    status = 1
    try:
        os.dup2(os.open(str(asked["out"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
        sys.argv = [str(asked["program"]), *asked["arguments"]]  # type: ignore[misc]
        os.kill(os.getpid(), signal.SIGSTOP)
        main()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
