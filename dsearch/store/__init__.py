"""Source of truth of a collection: SQLite and a watermark. Imports neither torch nor faiss.

store.py, reader.py   public interface: write, read        metadata.py   validation of metadata
records.py            records that the store returns       verify.py     verification of all data
folders.py            create, list, delete collections     backup.py     copies during writes
documents/            rows, models and generations, validation, retention
filters/              conditions on metadata: parsed, as SQL
sqlite/               connections, journal, watermark, digests, no network file systems
feedback/             clicks and their pages, in a separate file
"""

from __future__ import annotations

from dsearch.store.documents.validate import CheckedDocuments, refusal, validate_name
from dsearch.store.feedback.records import Event, Impression
from dsearch.store.feedback.store import FeedbackFull, FeedbackStore, Page, StoredEvents
from dsearch.store.filters.parse import Filter, filter_of, parse_filter
from dsearch.store.folders import collection_names, delete_collection
from dsearch.store.records import (
    BackupReport,
    DocumentCounts,
    GenerationRecord,
    MemoryRow,
    ModelRecord,
    Passages,
    Pending,
    PurgeReport,
    RowChanges,
    StoreState,
    VerifyReport,
    WriteReceipt,
)
from dsearch.store.store import Store

__all__ = [
    "BackupReport",
    "CheckedDocuments",
    "DocumentCounts",
    "Event",
    "FeedbackFull",
    "FeedbackStore",
    "Filter",
    "GenerationRecord",
    "Impression",
    "MemoryRow",
    "ModelRecord",
    "Page",
    "Passages",
    "Pending",
    "PurgeReport",
    "RowChanges",
    "Store",
    "StoreState",
    "StoredEvents",
    "VerifyReport",
    "WriteReceipt",
    "collection_names",
    "delete_collection",
    "filter_of",
    "parse_filter",
    "refusal",
    "validate_name",
]
