"""Clients of a dsearch server, and of an engine in this process, with the same calls.

    with Client("http://127.0.0.1:8080") as client:
        client.upsert("papers", documents)
        print(client.search("papers", "attention as retrieval").hits)

`AsyncClient` has the same methods, awaited. `dsearch.open("index")` has them without a server. `RemoteSearch`
is a collection of a server as a layer of a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.lazy_names import lazy_names

if TYPE_CHECKING:
    from dsearch.client.http import AsyncClient, Client
    from dsearch.client.layers import open_layer
    from dsearch.client.local.engine import LocalEngine, open
    from dsearch.client.remote_layer import RemoteSearch
    from dsearch.client.remote_output import RemoteOutput

_HOMES = {
    "AsyncClient": "dsearch.client.http",
    "Client": "dsearch.client.http",
    "LocalEngine": "dsearch.client.local.engine",
    "RemoteOutput": "dsearch.client.remote_output",
    "RemoteSearch": "dsearch.client.remote_layer",
    "open": "dsearch.client.local.engine",
    "open_layer": "dsearch.client.layers",
}

__all__ = ["AsyncClient", "Client", "LocalEngine", "RemoteOutput", "RemoteSearch", "open", "open_layer"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
