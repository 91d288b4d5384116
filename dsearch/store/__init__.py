"""The source of truth of a collection: SQLite and a watermark. Neither torch nor faiss.

store.py      Store: the public face                journal.py    how an operation becomes durable
write.py      statements of upsert and delete       watermark.py  what was acknowledged, outside SQLite
read.py       documents and embeddings, checked     digest.py     canonical bytes, digests, facts
registry.py   generations, models, which is live    validate.py   what may be stored
verify.py     reading everything again              schema.py     the tables, format numbers
folders.py    collections made, listed, deleted     connect.py    connections, SQLite's errors
records.py    what is handed out
"""

from __future__ import annotations

from .folders import collection_names, delete_collection
from .records import (
    Changes,
    Counts,
    GenerationRecord,
    ModelRecord,
    Pending,
    Snapshot,
    VerifyReport,
    WriteReceipt,
)
from .store import Store
from .validate import validate_name

__all__ = [
    "Changes",
    "Counts",
    "GenerationRecord",
    "ModelRecord",
    "Pending",
    "Snapshot",
    "Store",
    "VerifyReport",
    "WriteReceipt",
    "collection_names",
    "delete_collection",
    "validate_name",
]
