"""Small frozen records that the store returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64


@dataclass(frozen=True, slots=True)
class WriteReceipt:
    """An acknowledged, durable write.

    `sequence` is the operation's number, or the present one if nothing changed. For an upsert, `rows` has the
    row of each document in input order (the existing row of an unchanged one); for a deletion, the deleted
    rows.
    """

    sequence: int
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    missing: int = 0
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """Live documents, those of them without an embedding yet, and deleted or superseded rows kept."""

    documents: int
    pending: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class Pending:
    """Live rows without an embedding, ascending, and the characters of their contents, to batch by length."""

    rows: Int64[np.ndarray, " pending"]
    lengths: Int64[np.ndarray, " pending"]


@dataclass(frozen=True, slots=True)
class Passages:
    """The passages of one long document.

    Attributes:
        spans: [start, end) of each in characters of its text, by start, the first included.
        embeddings: embeddings of the passages after the first, whose embedding is the document's own.
    """

    spans: Int64[np.ndarray, "passages 2"]
    embeddings: Float32[np.ndarray, "further dimension"]


@dataclass(frozen=True, slots=True)
class StoreState:
    """The searchable rows (live, with an embedding), ascending, as of operation `sequence`."""

    sequence: int
    rows: Int64[np.ndarray, " rows"]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of the searchable rows after one operation and up to operation `sequence`.

    `added` rows are searchable now and were not then; `removed` rows were searchable then and are not now;
    both ascending.
    """

    sequence: int
    added: Int64[np.ndarray, " added"]
    removed: Int64[np.ndarray, " removed"]


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """A registered generation: an immutable snapshot of `rows` rows as of operation `snapshot`.

    `manifest_digest` is the SHA-256 (hex) of its manifest.json; `record` is free-form data of its builder;
    `written` is the operation that registered it.
    """

    number: int
    manifest_digest: str
    rows: int
    snapshot: int
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    written: int = 0


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A registered model: `version` ("v1", …; "v0" is the untrained one), its parent, and its JSON record."""

    version: str
    parent: str | None
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    written: int = 0


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A row of the query memory: a judged query.

    Attributes:
        text: text of the query; "" where it must not be shown: of outcomes and clicks.
        state: its embedding.
        grades: grades by rows of documents, one above 0; below 0: seen and left.
        source: "judgements", or "clicks", which has outcomes too.
        key: who sent it: the id of an API key, or of a client; "" without one.
        written: operation that wrote it; 0 before.
    """

    text: str
    state: Float32[np.ndarray, " dimension"]
    grades: dict[int, float]
    source: str = "judgements"
    key: str = ""
    written: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StoredVerdict:
    """A verdict of the gate, as later candidates on the same held-out queries account for it.

    Attributes:
        kind: kind of the candidate, such as "train".
        queries: digests of the held-out queries, ascending, each once.
        alpha: largest p-value that counted as a gain.
        passed: True if the candidate passed.
        version: version that the candidate became; None without one.
        judged_at: seconds since 1970.
    """

    kind: str
    queries: Int64[np.ndarray, " queries"]
    alpha: float
    passed: bool
    version: str | None = None
    judged_at: int = 0


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A complete backup as of operation `sequence`: its live documents and bytes."""

    sequence: int
    documents: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """Result of a purge, as operation `sequence`.

    `rows` deleted rows were removed permanently. `kept` rows are still needed by a registered generation:
    build a new one, retire the older ones, purge again. `overwritten` is True if the write-ahead log was
    emptied as well; a reader that holds an old state prevents it, so purge again when it has ended.
    """

    sequence: int
    rows: int
    kept: int
    overwritten: bool


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a verification: `damage` names everything that differs from its digest."""

    sequence: int
    documents: int
    embeddings: int
    damage: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if every digest agrees."""
        return not self.damage
