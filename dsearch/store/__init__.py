"""The source of truth of a collection: SQLite and a watermark (DESIGN §4). Neither torch nor faiss.

store.py      Store: the public face                    journal.py    how an operation becomes durable
write.py      statements of upsert and delete           watermark.py  what was acknowledged, outside SQLite
read.py       documents and embeddings, checked         digest.py     canonical bytes, digests, facts
registry.py   generations and models, which is live     validate.py   what may be stored
verify.py     reading everything again                  schema.py     the tables, format numbers
records.py    what is handed out                        connect.py    connections, SQLite's errors
"""

from __future__ import annotations

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
    "validate_name",
]
