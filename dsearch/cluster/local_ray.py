"""A Ray cluster on this machine only: `dsearch cluster start` starts it if there is none, `stop` ends it.

Its processes are children of one process of ours, in a session of its own, so that ending it affects no other
Ray cluster on this machine. The id of that process is stored in the cluster itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

from dsearch.cluster.connection import OBJECT_STORE_BYTES, OF_OUR_RAY, is_loopback
from dsearch.errors import Unavailable

PORT = 6379
START_S = 150.0
END_S = 30.0
_STATE = b"dsearch:head"


def start_head(address: str = "auto", cpus: int | None = None) -> str:
    """Start Ray on this machine, for this machine alone; it goes on when this process ends.

    Args:
        address: 127.0.0.1:port, or "auto" for the usual port.
        cpus: logical ones; the machine's own when None.

    Returns:
        Its address.

    Raises:
        Unavailable: it does not start, or an address that is not of this machine.
    """
    at = f"127.0.0.1:{PORT}" if address == "auto" else address
    if not is_loopback(at):
        raise Unavailable(f"no Ray cluster answers at {address}; start one there with: ray start --head")
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", f"--port={at.rpartition(':')[2]}"),
        *(f"--object-store-memory={OBJECT_STORE_BYTES}", "--include-dashboard=false"),
        *(() if cpus is None else (f"--num-cpus={cpus}",)),
    ]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**OF_OUR_RAY, **os.environ},
            start_new_session=True,
        )

        def so_far() -> str:
            output.seek(0)
            return output.read()

        until = time.monotonic() + START_S
        while "Ray runtime started" not in so_far():
            if process.poll() is not None or time.monotonic() > until:
                _end(process.pid)
                raise Unavailable(f"Ray did not start at {at}: {so_far().strip()[-500:]}")
            time.sleep(0.1)
    _remember(at, process.pid)
    return f"127.0.0.1:{at.rpartition(':')[2]}"


def stop_head() -> bool:
    """End the Ray that this process has joined, if it was started by `start_head`; whether it was."""
    import ray
    from ray.experimental.internal_kv import _internal_kv_get  # pyright: ignore[reportPrivateUsage]

    process = _internal_kv_get(_STATE)
    if not process:
        return False
    ray.shutdown()
    _end(int(process))
    return True


def _remember(address: str, process: int) -> None:
    from ray.experimental.internal_kv import _internal_kv_put  # pyright: ignore[reportPrivateUsage]

    from dsearch.cluster.connection import connect

    try:
        connect(address)
        _internal_kv_put(_STATE, str(process).encode(), overwrite=True)
    except BaseException:
        _end(process)
        raise


def _end(process: int) -> None:
    """SIGTERM, after which Ray ends its own; what is left of the session then is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
        until = time.monotonic() + END_S
        while _runs(process) and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(process, signal.SIGKILL)


def _runs(process: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
