"""A Ray cluster on this machine only: `dsearch cluster start` starts it if there is none, `stop` ends it.

All its processes are children of one process in a session of its own, so stopping it affects no other Ray
cluster on this machine. The id of that process is stored in the cluster.
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
START_S = 300.0  # one that ends by itself is seen at once; a busy machine takes minutes
END_S = 30.0
_STATE = b"dsearch:head"


def start_head(address: str = "auto", cpus: int | None = None) -> str:
    """Start Ray on this machine, reachable from this machine only; it outlives this process.

    Args:
        address: 127.0.0.1:port, or "auto" for the default port.
        cpus: logical CPUs; those of the machine when None.

    Returns:
        Its address.

    Raises:
        Unavailable: it does not start, or the address is not one of this machine.
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
            ended = process.poll() is not None
            if ended or time.monotonic() > until:
                _end(process.pid)
                within = "" if ended else f" within {START_S:.0f} s"
                raise Unavailable(f"Ray did not start at {at}{within}: {so_far().strip()[-500:]}")
            time.sleep(0.1)
    _remember(at, process.pid)
    return f"127.0.0.1:{at.rpartition(':')[2]}"


def stop_head() -> bool:
    """Stop the joined Ray if `start_head` started it; return True if so."""
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
    """Send SIGTERM, on which Ray stops its processes; then kill the rest of the session."""
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
