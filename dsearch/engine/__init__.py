"""The search engine: collections, their indexes and models, and search as a differentiable layer.

Names are loaded when they are first used, so that a search does not import what only layers need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.lazy_names import lazy_names
from dsearch.threads import load_torch_first

load_torch_first()  # faiss comes with the index

if TYPE_CHECKING:
    from dsearch.engine.calls import statistics
    from dsearch.engine.collection import Collection, Searchable
    from dsearch.engine.collection_layer import CollectionLayer, open_layer
    from dsearch.engine.engine import SearchEngine
    from dsearch.engine.evaluate import QueryStates, System, encode_queries, make_run
    from dsearch.engine.indexing.chunking import PassageOptions
    from dsearch.engine.maintenance.backup import Backup
    from dsearch.engine.maintenance.compact import Compaction, compact
    from dsearch.engine.maintenance.migrate import Migration
    from dsearch.engine.maintenance.verify import Verification
    from dsearch.engine.models.documents import EncodedDocuments
    from dsearch.engine.models.files import UNTRAINED, retired_part
    from dsearch.engine.models.tensors import (
        MAX_HEADS,
        head_bytes,
        head_from_bytes,
        head_from_tensors,
        head_tensors,
        parts_from_file,
        request_of_file,
        require_head_alone,
    )
    from dsearch.engine.options import KeyOptions, LayerOptions
    from dsearch.engine.ranking.layer import SearchLayer
    from dsearch.engine.ranking.output import SearchOutput
    from dsearch.engine.search.attend import AttendResult
    from dsearch.engine.search.gradients import GradientQuery, attention_parts, vjp
    from dsearch.engine.snapshot import Snapshot

_NAMES = {
    "models.tensors": (
        "MAX_HEADS",
        "head_bytes",
        "head_from_bytes",
        "head_from_tensors",
        "head_tensors",
        "parts_from_file",
        "request_of_file",
        "require_head_alone",
    ),
    "models.files": ("UNTRAINED", "retired_part"),
    "search.attend": ("AttendResult",),
    "maintenance.backup": ("Backup",),
    "collection": ("Collection", "Searchable"),
    "collection_layer": ("CollectionLayer", "open_layer"),
    "maintenance.compact": ("Compaction", "compact"),
    "models.documents": ("EncodedDocuments",),
    "search.gradients": ("GradientQuery", "attention_parts", "vjp"),
    "options": ("KeyOptions", "LayerOptions"),
    "maintenance.migrate": ("Migration",),
    "indexing.chunking": ("PassageOptions",),
    "evaluate": ("QueryStates", "System", "encode_queries", "make_run"),
    "engine": ("SearchEngine",),
    "ranking.layer": ("SearchLayer",),
    "ranking.output": ("SearchOutput",),
    "snapshot": ("Snapshot",),
    "maintenance.verify": ("Verification",),
    "calls": ("statistics",),
}
_HOMES = {name: f"dsearch.engine.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "MAX_HEADS",
    "UNTRAINED",
    "AttendResult",
    "Backup",
    "Collection",
    "CollectionLayer",
    "Compaction",
    "EncodedDocuments",
    "GradientQuery",
    "KeyOptions",
    "LayerOptions",
    "Migration",
    "PassageOptions",
    "QueryStates",
    "SearchEngine",
    "SearchLayer",
    "SearchOutput",
    "Searchable",
    "Snapshot",
    "System",
    "Verification",
    "attention_parts",
    "compact",
    "encode_queries",
    "head_bytes",
    "head_from_bytes",
    "head_from_tensors",
    "head_tensors",
    "make_run",
    "open_layer",
    "parts_from_file",
    "request_of_file",
    "require_head_alone",
    "retired_part",
    "statistics",
    "vjp",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
