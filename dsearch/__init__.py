"""A search engine that is one differentiable function.

import dsearch

with dsearch.SearchEngine("index") as engine:
    collection = engine.collection("papers")
    print(collection.search("attention as retrieval").hits)

layer = dsearch.SearchLayer.open("index", "papers")      # the same search, as a layer of a network
context = layer(query_states).context
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsearch.encoder import Encoder
    from dsearch.engine import Collection, SearchEngine, SearchLayer
    from dsearch.errors import DsearchError
    from dsearch.service import create_app
    from dsearch.types import Document, Hit, SearchResult

__version__ = "0.1.0"

# Loaded when first asked for: `import dsearch` itself brings neither torch nor fastapi.
_HOMES = {
    "Collection": "dsearch.engine",
    "Document": "dsearch.types",
    "DsearchError": "dsearch.errors",
    "Encoder": "dsearch.encoder",
    "Hit": "dsearch.types",
    "SearchEngine": "dsearch.engine",
    "SearchLayer": "dsearch.engine",
    "SearchResult": "dsearch.types",
    "create_app": "dsearch.service",
}

__all__ = [
    "Collection",
    "Document",
    "DsearchError",
    "Encoder",
    "Hit",
    "SearchEngine",
    "SearchLayer",
    "SearchResult",
    "create_app",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dsearch' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
