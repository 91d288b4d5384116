"""A search engine that is one differentiable function.

import dsearch

with dsearch.SearchEngine("index") as engine:
    collection = engine.collection("papers")
    print(collection.search("attention as retrieval").hits)

layer = dsearch.open_layer("index", "papers")            # the same search, as a layer of a network
context = layer(query_states).context
dsearch.save_model(collection, layer, evidence=score)    # once trained: a version, if the gate lets it

client = dsearch.Client("http://127.0.0.1:8080")         # the same calls, of a server
layer = dsearch.open_layer(client, "papers")             # the same layer, of a server
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.lazy_names import lazy_names
from dsearch.version import __version__ as __version__

if TYPE_CHECKING:
    from dsearch.client import AsyncClient, Client, RemoteSearch, open, open_layer
    from dsearch.encoder import Encoder
    from dsearch.engine import Collection, SearchEngine, SearchLayer
    from dsearch.errors import DsearchError
    from dsearch.jobs import ExampleScores, JudgedQueries
    from dsearch.service import create_app
    from dsearch.training import save_model
    from dsearch.types import Document, Hit, SearchResult

# Loaded when first asked for: `import dsearch` itself brings neither torch nor fastapi.
_HOMES = {
    "AsyncClient": "dsearch.client",
    "Client": "dsearch.client",
    "Collection": "dsearch.engine",
    "Document": "dsearch.types",
    "DsearchError": "dsearch.errors",
    "Encoder": "dsearch.encoder",
    "ExampleScores": "dsearch.jobs",
    "Hit": "dsearch.types",
    "JudgedQueries": "dsearch.jobs",
    "RemoteSearch": "dsearch.client",
    "SearchEngine": "dsearch.engine",
    "SearchLayer": "dsearch.engine",
    "SearchResult": "dsearch.types",
    "create_app": "dsearch.service",
    "open": "dsearch.client",
    "open_layer": "dsearch.client",
    "save_model": "dsearch.training",
}

__all__ = [
    "AsyncClient",
    "Client",
    "Collection",
    "Document",
    "DsearchError",
    "Encoder",
    "ExampleScores",
    "Hit",
    "JudgedQueries",
    "RemoteSearch",
    "SearchEngine",
    "SearchLayer",
    "SearchResult",
    "create_app",
    "open",
    "open_layer",
    "save_model",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
