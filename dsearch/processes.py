"""Long work in a process of its own: `run_spawned` starts it, passes its progress on, and brings the result.

    def build(report: Report, folder: Path) -> int: ...          # a function of an importable module

    number = run_spawned(build, folder, on_progress=print, cancelled=stop.is_set)

The process is a new interpreter, never a fork: a forked child of a process in which torch or FAISS has run
threads inherits their locks and none of the threads that would release them. Unlike `multiprocessing.Process`
it does not import the caller's main module, so scripts need no `if __name__ == "__main__"`. It ends with the
process that started it, even after a crash of that.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dsearch.errors import Cancelled, DsearchError, InvalidRequest, ProcessDied
from dsearch.types import Progress

Report = Callable[[Progress], None]
Result = TypeVar("Result")

_POLL_S = 0.1  # maximum delay of a cancellation
_GRACE_S = 3.0  # time to clean up after SIGTERM

# The thread budget is set before the import of the target's module, which loads native libraries that read
# it.
_BOOTSTRAP = """\
import sys
sys.path[:] = {path!r}
from dsearch.processes import _child
from dsearch.threads import set_threads
_child({fd}, {memory_bytes}, lambda: set_threads({threads}))
"""


def run_spawned(
    target: Callable[..., Result],
    *args: Any,
    on_progress: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
    memory_bytes: int | None = None,
    threads: int | None = None,
) -> Result:
    """Run `target(report, *args)` in a new process and return what it returns.

    Arguments and result are JSON-able values, dataclasses and paths. Large results (an index, a model) are
    written to a folder, and its path is returned.

    Args:
        target: a function of an importable module, not of `__main__`; its first argument is a function that
            takes `Progress`.
        args: arguments of the function.
        on_progress: called in the calling thread with progress of the process.
        cancelled: polled every tenth of a second; True stops the process (SIGTERM, in Python a `SystemExit`),
            and kills it after 3 s.
        memory_bytes: limit of address space beyond the loaded libraries; None for no limit. Systems without
            RLIMIT_AS have no limit.
        threads: its thread budget; None for that of this process, or all cores when none was set.

    Raises:
        DsearchError: raised by the target. Its other exceptions are raised too, with their traceback as a
            note.
        Cancelled: `cancelled` returned True.
        ProcessDied: it was killed, ran out of memory, or ended without a result.
        InvalidRequest: a target that a new process cannot import; a `memory_bytes` or `threads` below 1.
    """
    payload = _payload(target, args)
    _check(memory_bytes=memory_bytes, threads=threads)
    with _started(payload, memory_bytes, _budget() if threads is None else threads) as (process, channel):
        while True:
            if cancelled is not None and cancelled():
                raise Cancelled(f"{target.__name__} was cancelled; what it had begun is not there")
            try:
                if not channel.poll(_POLL_S):
                    continue
                # Unpickles data of a child process from a private socket; nothing stored on disk is ever
                # unpickled.
                kind, value = channel.recv()
            except (EOFError, OSError):
                _raise_death(process, target.__name__)
            if kind == "progress":
                if on_progress is not None:
                    on_progress(value)
            elif kind == "result":
                return value
            else:
                raise value


def _payload(target: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    name = getattr(target, "__qualname__", repr(target))
    module = getattr(target, "__module__", None)
    if module in (None, "__main__") or "<" in name:
        raise InvalidRequest(f"{module}.{name} cannot be run in another process; use a function of a module")
    return pickle.dumps((target, args))


def _check(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise InvalidRequest(f"{name}={number}; use an integer of at least 1, or leave it out")


def _budget() -> int | None:
    """Thread budget that `set_threads` has set in this process, or None."""
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(threads) if threads.isdigit() and int(threads) > 0 else None


@contextmanager
def _started(
    payload: bytes, memory_bytes: int | None, threads: int | None
) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Start the process with a connection to it; both are closed at the end."""
    ours, its = Pipe()
    try:
        code = _BOOTSTRAP.format(
            path=[str(Path(entry or ".").absolute()) for entry in sys.path],
            fd=its.fileno(),
            memory_bytes=memory_bytes,
            threads=threads,
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[its.fileno()]
        )
    except BaseException:
        ours.close()
        raise
    finally:
        its.close()  # the child has the only copy, so its death ends the connection
    try:
        with suppress(OSError):  # it is dead already, which the first receive reports
            ours.send_bytes(payload)
        yield process, ours
    except BaseException:
        process.terminate()
        raise
    finally:
        try:
            process.wait(_GRACE_S)  # to exit after a result, or to clean up after SIGTERM
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        ours.close()


def _raise_death(process: subprocess.Popen[bytes], name: str) -> NoReturn:
    status = process.wait()
    if status >= 0:
        raise ProcessDied(
            f"the process of {name} ended with status {status} and no result; see what it wrote to stderr"
        )
    try:
        how = signal.Signals(-status).name
    except ValueError:
        how = f"signal {-status}"
    more = "; often the system does this when memory is short" if how == "SIGKILL" else ""
    raise ProcessDied(f"the process of {name} was killed by {how}{more}; what it had begun is not there")


# ---- in the new process


def _child(fd: int, memory_bytes: int | None, set_threads: Callable[[], object]) -> None:
    channel = Connection(fd)
    payload = channel.recv_bytes()
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    # Ctrl-C reaches both processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _clean_up_and_end)
    try:
        set_threads()
        target, args = pickle.loads(payload)
        if memory_bytes is not None:
            # The libraries of torch take a gigabyte of addresses; the limit is for the work alone.
            import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

            limit_memory(memory_bytes)
        message = ("result", target(lambda progress: channel.send(("progress", progress)), *args))
    except Exception as error:
        message = ("error", _sendable(error))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to clean up
    channel.send(message)


def _clean_up_and_end(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would end the cleaning up in a traceback
    sys.exit(128 + signal.SIGTERM)


def _end_with_parent(channel: Connection) -> None:
    """Wait for the end of the connection; nothing else is sent to this process."""
    try:
        channel.recv_bytes()
    except (EOFError, OSError):
        time.sleep(_POLL_S)  # after a result this process exits by itself
        os._exit(1)


def limit_memory(memory_bytes: int) -> None:
    """Bound the address space that this process takes from now on, where the system can."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        taken = pages * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = taken + memory_bytes
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, OSError, ValueError):
        return  # a system without


def _sendable(error: Exception) -> Exception:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's message
        return ProcessDied(f"out of memory ({error}); give more memory, or less work at a time")
    if not isinstance(error, DsearchError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a constructor with other arguments than the message
        kind = type(error).__name__
        return ProcessDied(f"{kind}: {error}")
    return error
