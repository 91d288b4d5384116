"""Where attention meets index and store: collections, and search as a layer."""

from __future__ import annotations

# torch comes before faiss, which comes with the index: see dsearch/threads.py
import torch as _torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

from dsearch.engine.attending import Attended
from dsearch.engine.backups import Backup
from dsearch.engine.collection import Collection
from dsearch.engine.cutting import PassageOptions
from dsearch.engine.engine import SearchEngine
from dsearch.engine.gradients import AttentionParts, Gradients, Question, attention_parts, vjp
from dsearch.engine.heads import (
    MAX_HEADS,
    head_bytes,
    head_from_bytes,
    head_from_tensors,
    head_tensors,
    require_head_alone,
)
from dsearch.engine.keys import KeyOptions
from dsearch.engine.layer import SearchLayer
from dsearch.engine.maintenance import Compacted, compact
from dsearch.engine.migrate import Migrated
from dsearch.engine.model_documents import EncodedDocuments
from dsearch.engine.models import UNTRAINED
from dsearch.engine.options import LayerOptions, SearchOptions
from dsearch.engine.predicting import Evidence, FieldPrediction, Predicted
from dsearch.engine.runs import QueryStates, System, encode_queries, make_run
from dsearch.engine.search_output import SearchOutput
from dsearch.engine.snapshot import Snapshot
from dsearch.engine.statistics import statistics
from dsearch.engine.verifying import Verified

__all__ = [
    "MAX_HEADS",
    "UNTRAINED",
    "Attended",
    "AttentionParts",
    "Backup",
    "Collection",
    "Compacted",
    "EncodedDocuments",
    "Evidence",
    "FieldPrediction",
    "Gradients",
    "KeyOptions",
    "LayerOptions",
    "Migrated",
    "PassageOptions",
    "Predicted",
    "QueryStates",
    "Question",
    "SearchEngine",
    "SearchLayer",
    "SearchOptions",
    "SearchOutput",
    "Snapshot",
    "System",
    "Verified",
    "attention_parts",
    "compact",
    "encode_queries",
    "head_bytes",
    "head_from_bytes",
    "head_from_tensors",
    "head_tensors",
    "make_run",
    "require_head_alone",
    "statistics",
    "vjp",
]
