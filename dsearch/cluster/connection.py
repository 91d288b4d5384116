"""Connect to a Ray cluster or start one here; every entry point of this package does so first."""

from __future__ import annotations

import ipaddress
import os
import socket
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
