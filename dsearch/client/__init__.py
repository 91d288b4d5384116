"""Clients of a dsearch server, and of an engine in this process, with the same calls.

    with Client("http://127.0.0.1:8080") as client:
        client.upsert("papers", documents)
        print(client.search("papers", "attention as retrieval").hits)

`AsyncClient` has the same methods, awaited. `dsearch.open("index")` has them without a server. `RemoteSearch`
is a collection of a server as a layer of a network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsearch.client.http import AsyncClient, Client
    from dsearch.client.local.client import LocalEngine, open
    from dsearch.client.remote_layer import RemoteSearch
    from dsearch.client.remote_output import RemoteOutput

_HOMES = {
    "AsyncClient": "dsearch.client.http",
    "Client": "dsearch.client.http",
    "LocalEngine": "dsearch.client.local.client",
    "RemoteOutput": "dsearch.client.remote_output",
    "RemoteSearch": "dsearch.client.remote_layer",
    "open": "dsearch.client.local.client",
}

__all__ = ["AsyncClient", "Client", "LocalEngine", "RemoteOutput", "RemoteSearch", "open"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dsearch.client' has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
