"""When a server has loaded what it searches by."""

from __future__ import annotations

from starlette.testclient import TestClient


def until_loaded(client: TestClient) -> TestClient:
    """The client, when its server has loaded encoder and indexes, or could not: `/readyz` says which."""
    client.portal.call(client.app.state.service.warm)  # type: ignore[union-attr]
    return client
