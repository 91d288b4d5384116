"""Source of truth of a collection: SQLite and a watermark. Imports neither torch nor faiss.

store.py      Store: the public face, written       journal.py    how an operation becomes durable
reader.py     Reader: the same, read                watermark.py  what was acknowledged, outside SQLite
write.py      statements of upsert and delete       digest.py     canonical bytes, digests, facts
patch.py      a part of the metadata changed        validate.py   what may be stored
read.py       documents and embeddings, checked     schema.py     the tables, format numbers
filters.py    conditions on metadata, as a tree     connect.py    connections, SQLite's errors
filter_sql.py the same as SQL                       operation.py  what an operation changes; groups of them
matching.py   what a filter finds                   registry.py   generations, models, which is live
passages.py   further embeddings of long documents
records.py    what is handed out                    retention.py  what may go, and going for good
verify.py     reading everything again              folders.py    collections made, listed, deleted
backup.py     copies while writes go on            feedback.py   clicks and their pages, a file of its own
local_disk.py no network file systems       feedback_file.py  its transactions, its watermark
"""

from __future__ import annotations

from dsearch.store.documents.validate import Checked, refusal, validate_name
from dsearch.store.feedback.records import Event, Impression
from dsearch.store.feedback.store import FeedbackFull, FeedbackStore, Page, Recorded
from dsearch.store.filters.parse import Filter, parse_filter
from dsearch.store.folders import collection_names, delete_collection
from dsearch.store.records import (
    BackupReport,
    Changes,
    Counts,
    FacetValue,
    GenerationRecord,
    ModelRecord,
    Passages,
    Pending,
    PurgeReport,
    Snapshot,
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
    "FacetValue",
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
    "Recorded",
    "Snapshot",
    "Store",
    "VerifyReport",
    "WriteReceipt",
    "collection_names",
    "delete_collection",
    "parse_filter",
    "refusal",
    "validate_name",
]
