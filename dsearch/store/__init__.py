"""Source of truth of a collection: SQLite and a watermark. Imports neither torch nor faiss.

store.py, reader.py   the public face: written, read       metadata.py   metadata of documents, checked
records.py            the shapes that are handed out       verify.py     reading everything again
folders.py            collections made, listed, deleted    backup.py     copies while writes go on
documents/            rows, models and generations, what may be stored, retention
filters/              conditions on metadata: parsed, as SQL
sqlite/               connections, journal, watermark, digests, no network file systems
feedback/             clicks and their pages, in a file of its own
"""

from __future__ import annotations

from dsearch.store.documents.validate import Checked, refusal, validate_name
from dsearch.store.feedback.records import Event, Impression
from dsearch.store.feedback.store import FeedbackFull, FeedbackStore, Page, StoredEvents
from dsearch.store.filters.parse import Filter, parse_filter
from dsearch.store.folders import collection_names, delete_collection
from dsearch.store.records import (
    BackupReport,
    Changes,
    Counts,
    GenerationRecord,
    ModelRecord,
    Passages,
    Pending,
    PurgeReport,
    StoreState,
    VerifyReport,
    WriteReceipt,
)
from dsearch.store.store import Store

__all__ = [
    "BackupReport",
    "Changes",
    "Checked",
    "Counts",
    "Event",
    "FeedbackFull",
    "FeedbackStore",
    "Filter",
    "GenerationRecord",
    "Impression",
    "ModelRecord",
    "Page",
    "Passages",
    "Pending",
    "PurgeReport",
    "Store",
    "StoreState",
    "StoredEvents",
    "VerifyReport",
    "WriteReceipt",
    "collection_names",
    "delete_collection",
    "parse_filter",
    "refusal",
    "validate_name",
]
