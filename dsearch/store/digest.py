"""Canonical bytes and the digests over them: what makes a changed bit visible.

Two layers, both SHA-256:

- **Content digests** are stored beside what they cover. A document's covers id, title, text, metadata and
  value, each as UTF-8 with its length in front (8 bytes, little-endian); an embedding's covers its float32
  bytes.
- **Facts** say which of them belong to the collection: "row 7 holds the document of digest d since operation
  3", "row 7 was deleted by operation 9". The **set digest** is the sum of all facts modulo 2^256. A sum does
  not depend on order, so one operation adds its own facts without reading the others, and a lost, doubled or
  revived row changes it. It guards against faults, not against an attacker, who could write a new watermark
  as well.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

DIGEST_BYTES = 32
_MODULUS = 1 << (8 * DIGEST_BYTES)
_LENGTH = struct.Struct("<Q")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Raises ValueError for NaN and infinities, TypeError for what JSON does not know.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(*fields: bytes) -> bytes:
    """SHA-256 over fields with their lengths in front, so that moving a byte between fields changes it."""
    return hashlib.sha256(b"".join([_LENGTH.pack(len(field)) + field for field in fields])).digest()


def embedding_digest(vector: bytes) -> bytes:
    """SHA-256 of an embedding's little-endian float32 bytes."""
    return hashlib.sha256(vector).digest()


def fact(kind: bytes, *parts: int | bytes) -> int:
    """One statement about the collection as a number below 2^256, to be added to the set digest."""
    fields = [_LENGTH.pack(part) if isinstance(part, int) else part for part in parts]
    return int.from_bytes(digest_of(kind, *fields), "little")


def document_fact(row: int, written: int, digest: bytes) -> int:
    """`row` holds the document of this digest since operation `written`."""
    return fact(b"document", row, written, digest)


def tombstone_fact(row: int, deleted: int) -> int:
    """`row` was deleted or superseded by operation `deleted`."""
    return fact(b"tombstone", row, deleted)


def embedding_fact(row: int, written: int, digest: bytes) -> int:
    """`row` has the embedding of this digest since operation `written`."""
    return fact(b"embedding", row, written, digest)


def record_fact(kind: bytes, *fields: Any) -> int:
    """A row of a small table (generation, model, live, meta), as the canonical JSON of its columns."""
    return fact(kind, canonical_json(list(fields)).encode("utf-8"))


def add_facts(digest: bytes, total: int) -> bytes:
    """The set digest after the facts that sum to `total` were added (or, when negative, taken away)."""
    return ((int.from_bytes(digest, "little") + total) % _MODULUS).to_bytes(DIGEST_BYTES, "little")
