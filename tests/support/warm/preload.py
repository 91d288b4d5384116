"""The process that forks: `python preload.py FOLDER MODULE …`, as `processes.py` starts it. Not a test.

It imports what dsearch's processes import, loads the default encoder and then only listens, in one thread. It
must never compute: a fork after OpenMP or BLAS have started threads inherits their locks without the threads.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types
import weakref
from pathlib import Path
from typing import Any

SOCKET, LOCK = "socket", "lock"  # as in processes.py


def main() -> None:
    sys.path[0] = str(Path(__file__).parents[2])
    sys.path.insert(1, str(Path(__file__).parents[3]))
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # pyarrow's allocator
    gc.disable()  # meanwhile: what is imported stays
    if modules := sys.argv[2:]:
        from dsearch.threads import set_threads

        set_threads(1)
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            __import__(name)
    if modules:
        _load_the_encoder()
        set_threads(1)  # of all that was loaded: looking for it takes 12 ms, and the second time 2
    # What was made here ends here: taking torch's operators back costs each fork twice what it costs to fork.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    assert len(os.listdir("/proc/self/task")) == 1, "a fork must not follow threads"
    gc.collect()
    gc.freeze()
    gc.enable()
    request = _listen(Path(sys.argv[1]))
    if request is not None:
        _end(_status_of(request))


def _load_the_encoder() -> None:
    """Load the default one: the first load of each fork takes this model, its second one loads anew.

    What a load prepares besides, hundreds of compiled patterns for one, is there in every fork.
    """
    from dsearch.encoder import Encoder, encoder
    from dsearch.errors import EncoderUnavailable

    load, kept = encoder._load_model, []

    def keep(*place: Any) -> Any:
        kept.append((place, load(*place)))
        return kept[0][1]

    def take(*place: Any) -> Any:
        return kept.pop()[1] if kept and kept[0][0] == place else load(*place)

    encoder._load_model = keep
    with contextlib.suppress(EncoderUnavailable):
        Encoder.load()
    encoder._load_model = take


def _listen(folder: Path) -> dict[str, Any] | None:
    """Fork on each request and report each end; returns the request in the new process, None at the end."""
    base = sys.path[2:]
    ended_reads, ended_writes = os.pipe()
    os.set_blocking(ended_writes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_writes, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / SOCKET))
    listener.listen(64)
    print("ready", flush=True)
    channels: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, ended_reads], [], [])
        if ended_reads in ready:
            os.read(ended_reads, 4096)
            _report(channels)
        if listener in ready:
            channel, _ = listener.accept()
            request, descriptors = _received(channel)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for other in (*channels.values(), channel, listener):
                    other.close()
                os.close(ended_reads)
                os.close(ended_writes)
                _place(descriptors, request["numbers"])
                return request | {"base": base}
            for descriptor in descriptors:
                os.close(descriptor)
            channels[pid] = channel
            with contextlib.suppress(OSError):
                channel.sendall(b"%d\n" % pid)
        if 0 in ready and _is_the_last(folder):
            for pid in channels:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return None


def _is_the_last(folder: Path) -> bool:
    """Nobody holds a lease any more; then nobody gets one, either."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            held = os.read(0, 1) != b""
        except BlockingIOError:  # somebody has taken one meanwhile
            held = True
        if not held:
            os.close(0)
        return not held


def _report(channels: dict[int, socket.socket]) -> None:
    while channels:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with channels.pop(pid) as channel, contextlib.suppress(OSError):
            channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _received(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, descriptors, _, _ = socket.recv_fds(channel, 4, 16)
    left, parts = int.from_bytes(size, "big"), []
    while left:
        parts.append(channel.recv(left))
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), list(descriptors)


def _place(descriptors: list[int], numbers: list[int]) -> None:
    """Give the descriptors their numbers; first above all of them, so that none is overwritten."""
    above = max(*numbers, *descriptors) + 1
    for i, descriptor in enumerate(descriptors):
        os.dup2(descriptor, above + i)
        os.close(descriptor)
    for i, number in enumerate(numbers):
        os.dup2(above + i, number, inheritable=True)
        os.close(above + i)


def _status_of(request: dict[str, Any]) -> int:
    """The exit status of the program, as an interpreter gives it."""
    try:
        _become(request)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> None:
    """What an interpreter does at its end, but for half a second of taking its modules apart."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads and executors
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _become(request: dict[str, Any]) -> None:
    from support.warm.processes import VARIABLE, WarmProcess, WarmSubprocess

    from dsearch import processes

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    # What it starts by itself is warm, too.
    address = os.environ[VARIABLE]
    processes.subprocess = WarmSubprocess(lambda *args, **more: WarmProcess(address, *args, **more))  # type: ignore[assignment]
    search = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    command = request["command"]
    while command[0].startswith("-") and command[0] not in ("-c", "-m"):
        command = command[1:]
    if command[0] == "-c":
        sys.argv, sys.path[:] = ["-c", *command[2:]], ["", *search, *request["base"]]
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(command[1], "<string>", "exec"), module.__dict__)
    elif command[0] == "-m":
        sys.argv, sys.path[:] = command[1:], ["", *search, *request["base"]]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path[:] = [str(Path(command[0]).resolve().parent), *search, *request["base"]]
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
