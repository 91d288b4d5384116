"""Source of truth of a collection: SQLite and a watermark. Imports neither torch nor faiss.

store.py, reader.py   public interface: write, read        validate.py   validation of documents
records.py            records that the store returns       verify.py     verification of all data
folders.py            create, list, delete, back up, restore collections
registry.py           generations and models, retention    judged.py     rows of the query memory
filters.py            conditions on metadata, as SQL       passages.py   embeddings of long documents
verdicts.py           verdicts of the gate, for its ledger
feedback.py           clicks and their pages, in a separate file
sqlite/               connections, journal, watermark, digests
"""

from __future__ import annotations

from dsearch.store.feedback import Event, FeedbackFull, FeedbackStore, Impression, Page, StoredEvents
from dsearch.store.filters import Filter, filter_of, parse_filter
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
    StoredVerdict,
    StoreState,
    VerifyReport,
    WriteReceipt,
)
from dsearch.store.store import Store
from dsearch.store.validate import CheckedDocuments, refusal, validate_name

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
    "StoredVerdict",
    "VerifyReport",
    "WriteReceipt",
    "collection_names",
    "delete_collection",
    "filter_of",
    "parse_filter",
    "refusal",
    "validate_name",
]
