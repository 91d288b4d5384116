"""Metadata as answers show them: without the folder of this machine that a document came from.

The engine needs the folder to tell which documents are gone with their files. Clients learn a document's
place in the folder (`path`), not where the folder lies: that tells names of users and of disks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsearch.types import ROOT_KEYS, Document

_FIELD, _ROOT = ROOT_KEYS


def public_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata without the folder; the same object if they have none."""
    own = metadata.get(_FIELD)
    if not isinstance(own, dict) or _ROOT not in own:
        return metadata
    return {**metadata, _FIELD: {name: value for name, value in own.items() if name != _ROOT}}


def public_document(document: Document) -> Document:
    """Return the document without the folder; the same object if it has none."""
    metadata = public_metadata(document.metadata)
    return document if metadata is document.metadata else replace(document, metadata=metadata)
