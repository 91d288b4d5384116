"""A Ray cluster of several nodes on this machine, started once for all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Ray reads these when it is imported. Tokens, as machines that reach each other over a network need them.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)
STORE_BYTES = 80 << 20


@pytest.fixture(scope="session")
def nodes() -> Iterator[object]:
    """The cluster, this process joined to it."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    from dsearch.cluster.connecting import connect

    head = {"num_cpus": 4, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=4, object_store_memory=STORE_BYTES)
        connect(cluster.address)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
