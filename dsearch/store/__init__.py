"""The source of truth of a collection: SQLite and a watermark. Neither torch nor faiss.

store.py      Store: the public face, written       journal.py    how an operation becomes durable
reader.py     Reader: the same, read                watermark.py  what was acknowledged, outside SQLite
write.py      statements of upsert and delete       digest.py     canonical bytes, digests, facts
patch.py      a part of the metadata changed        validate.py   what may be stored
read.py       documents and embeddings, checked     schema.py     the tables, format numbers
filters.py    conditions on metadata, as a tree     connect.py    connections, SQLite's errors
filter_sql.py the same as SQL                       registry.py   generations, models, which is live
matching.py   what a filter finds                   verify.py     reading everything again
records.py    what is handed out                    folders.py    collections made, listed, deleted
"""

from __future__ import annotations

from .filters import Filter, parse_filter
from .folders import collection_names, delete_collection
from .records import (
    Changes,
    Counts,
    FacetValue,
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
    "FacetValue",
    "Filter",
    "GenerationRecord",
    "ModelRecord",
    "Pending",
    "Snapshot",
    "Store",
    "VerifyReport",
    "WriteReceipt",
    "collection_names",
    "delete_collection",
    "parse_filter",
    "validate_name",
]
