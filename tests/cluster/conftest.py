"""A Ray cluster of several nodes on this machine, started once for all tests; and nothing waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from dsearch.cluster.connection import OF_OUR_RAY

# Ray reads these when it is imported. Tokens, as machines that reach each other over a network need them.
# The rest as for a Ray that dsearch starts: workers at Ray's own niceness wait for every other test.
os.environ.update(OF_OUR_RAY, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)
# A node that was killed is noticed after 5 s instead of 15, and one that is only slow is not given up.
os.environ.update(
    RAY_health_check_period_ms="500",
    RAY_health_check_failure_threshold="10",
    RAY_health_check_timeout_ms="60000",
    RAY_worker_register_timeout_seconds="240",
    RAY_raylet_start_wait_time_s="220",  # where it is over, these tests are skipped
)
STORE_BYTES = 80 << 20
START_S, TEST_S = 480, 600  # many times what an idle machine takes
# What Ray Serve and Ray Data say of their own code when they are imported, 21 times.
OF_RAY = (
    "ignore:Using extra keyword arguments on `Field` is deprecated:DeprecationWarning",
    "ignore::DeprecationWarning:ray.data.context",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for one in OF_RAY:
                item.add_marker(pytest.mark.filterwarnings(one))


@contextmanager
def within(seconds: int, what: str) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the block takes longer."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def limited(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that asks a cluster ends, one way or the other."""
    with (
        within(TEST_S, request.node.name)
        if request.node.get_closest_marker("ray")
        else contextlib.nullcontext()
    ):
        yield


@pytest.fixture(scope="session")
def nodes() -> Iterator[object]:
    """The cluster, this process joined to it; skips where Ray itself does not start."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    from dsearch.cluster.connection import connect

    head = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster()
    try:
        try:
            with within(START_S, "starting Ray"):
                cluster.add_node(**head)
                cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        except Exception as error:
            pytest.skip(f"Ray does not start on this machine: {error}")
        with within(START_S, "joining Ray"):
            connect(cluster.address)
        yield cluster
    finally:
        with within(START_S, "ending Ray"):
            ray.shutdown()
            cluster.shutdown()
