"""Canonical bytes and their digests, which reveal every changed bit.

Two layers, both SHA-256, all integers 8 bytes, unsigned, little-endian:

- **Content digests** are stored beside what they cover. A document's covers the byte lengths of id, title,
  text, metadata and value, then these five as UTF-8 (metadata and value as canonical JSON, no value as
  nothing). An embedding's covers its float32 bytes, that of passages the byte
  length of their spans, the spans and the float32 bytes.
- **Facts** state the collection's content: "row 7 holds the document of digest d since operation 3", "row
  7 was deleted by operation 9". A fact is the SHA-256 of its kind (ASCII, filled up with zeros to 16 bytes)
  and its fields, read as a little-endian number. The **set digest** is the sum of all facts modulo 2^256. A
  sum does not depend on order, so an operation adds its own facts without reading the others, and a lost,
  doubled or revived row changes it. It guards against faults, not against an attacker, who could write a new
  watermark as well.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

DIGEST_BYTES = 32
_MODULUS = 1 << (8 * DIGEST_BYTES)
_LENGTHS = struct.Struct("<5Q")
_ROW_FACT = struct.Struct("<16sQQ32s")
_TOMBSTONE = struct.Struct("<16sQQ")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Raises ValueError for NaN and infinities, TypeError for values that JSON lacks.
    """
    return _ENCODER.encode(value)


def document_digest(id: bytes, title: bytes, text: bytes, metadata: bytes, value: bytes) -> bytes:
    """Digest of a document; the leading lengths reveal a byte that moved between fields."""
    lengths = _LENGTHS.pack(len(id), len(title), len(text), len(metadata), len(value))
    return sha256(b"".join((lengths, id, title, text, metadata, value))).digest()


def embedding_digest(vector: bytes) -> bytes:
    """Digest of an embedding's little-endian float32 bytes."""
    return sha256(vector).digest()


def passages_digest(spans: bytes, vectors: bytes) -> bytes:
    """Digest of a document's passages: their places and their further embeddings."""
    return sha256(len(spans).to_bytes(8, "little") + spans + vectors).digest()


def judged_digest(parts: Sequence[bytes]) -> bytes:
    """Digest of a row of the query memory: text, state, grades, source and key."""
    return sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()


def document_fact(row: int, written: int, digest: bytes) -> int:
    """`row` holds the document of this digest since operation `written`."""
    return _number(_ROW_FACT.pack(b"document", row, written, digest))


def tombstone_fact(row: int, deleted: int) -> int:
    """`row` was deleted or superseded by operation `deleted`."""
    return _number(_TOMBSTONE.pack(b"tombstone", row, deleted))


def embedding_fact(row: int, written: int, digest: bytes) -> int:
    """`row` has the embedding of this digest since operation `written`."""
    return _number(_ROW_FACT.pack(b"embedding", row, written, digest))


def passages_fact(row: int, written: int, digest: bytes) -> int:
    """`row` has the passages of this digest since operation `written`."""
    return _number(_ROW_FACT.pack(b"passages", row, written, digest))


def judged_fact(number: int, written: int, digest: bytes) -> int:
    """Row `number` of the query memory has the content of this digest since operation `written`."""
    return _number(_ROW_FACT.pack(b"judged", number, written, digest))


def record_fact(kind: bytes, *columns: Any) -> int:
    """A row of a small table (generation, model, live, meta); its field is its columns as canonical JSON."""
    return _number(kind.ljust(16, b"\0") + canonical_json(list(columns)).encode("utf-8"))


def content_fact(kind: bytes, digest: bytes) -> int:
    """A row whose content digest names it by itself (an event, an impression)."""
    return _number(kind.ljust(16, b"\0") + digest)


def add_facts(digest: bytes, total: int) -> bytes:
    """Return the set digest after adding the facts that sum to `total` (removing them if negative)."""
    return ((int.from_bytes(digest, "little") + total) % _MODULUS).to_bytes(DIGEST_BYTES, "little")


def _number(statement: bytes) -> int:
    return int.from_bytes(sha256(statement).digest(), "little")
