"""Connect to a Ray cluster, or start one here; every entry point of this package does so first.

`dsearch cluster start` starts Ray on this machine if there is none (`start_head`), `stop` ends it. All its
processes are children of one process in a session of its own, so stopping it affects no other Ray cluster on
this machine. The id of that process is stored in the cluster.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from dsearch.errors import Command, InvalidRequest, MissingExtra, Unavailable

NAMESPACE = "dsearch"
OBJECT_STORE_BYTES = 256 << 20  # Ray's default is 30 % of the memory; only weights and blocks pass through
_OLDEST = (2, 52)

# Environment of a Ray that dsearch starts; read at its start.
OF_OUR_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",  # busy machines need more than 30
    "RAY_worker_niceness": "0",  # Ray's default of 15 is for background work; searches wait for shards
}


def ray_module() -> ModuleType:
    """Import Ray; raises MissingExtra if it is not installed, or too old."""
    if _token_is_there():
        # A Ray started here requires a token then; `ray.init` sends it to an address only on request.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            f"a cluster needs Ray, which is not installed or not whole ({error}); run pip install "
            "'dsearch[ray]'"
        ) from error
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < _OLDEST:
        raise MissingExtra(
            f"Ray {ray.__version__} is installed; its clusters know no tokens before 2.52: "
            "run pip install --upgrade 'dsearch[ray]'"
        )
    return ray


def connect(address: str | None, **options: Any) -> ModuleType:
    """Import Ray and join the cluster at `address`; start one here if it is None.

    Args:
        address: host:port of the head node, or "auto" for the cluster of this machine.
        options: options of `ray.init` for a new cluster.

    Raises:
        MissingExtra: Ray is not installed.
        InvalidRequest: other machines reach that address, and tokens are not required.
        Unavailable: nothing answers there.
    """
    ray = ray_module()
    if ray.is_initialized():
        return ray
    for name, value in OF_OUR_RAY.items():
        os.environ.setdefault(name, value)
    shared: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(
            address="local",  # None would join a running cluster
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            **{**shared, **options},
        )
        return ray
    require_token(address)
    if address != "auto" and not answers(address):  # Ray would try for minutes
        raise Unavailable(f"nothing listens at {address}; start Ray there with: ray start --head")
    if is_loopback(address):
        shared["_node_ip_address"] = "127.0.0.1"  # Ray would look for the head at this machine's own address
    try:
        ray.init(address=address, **shared)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Unavailable(
            f"no Ray cluster answers at {address} ({error}); start one", hint=Command("cluster start")
        ) from error
    return ray


def answers(address: str) -> bool:
    """Return True if a process listens at host:port."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except (OSError, ValueError):
        return False


def _token_is_there() -> bool:
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").is_file()


def is_loopback(address: str) -> bool:
    """Return True if host:port can be reached from this machine only."""
    host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_token(address: str) -> None:
    """Refuse an address that other machines reach if Ray requires no token.

    Anyone who reaches such a cluster can run programs on it.

    Raises:
        InvalidRequest
    """
    if os.environ.get("RAY_AUTH_MODE") == "token" or address in ("auto", "local"):
        return
    if not is_loopback(address):
        raise InvalidRequest(
            f"address {address} can be reached from other machines, and whoever reaches Ray can run programs "
            "on it; set RAY_AUTH_MODE=token on every node (`ray get-auth-token --generate` makes the token), "
            "or use 127.0.0.1"
        )


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
