"""Documents that a training of scope `full` encoded, on their way from its process to the one that serves.

By row, not by position: the collection may have changed meanwhile. What was written since is encoded when a
search first sees it, and what is gone is left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from dsearch.engine import EncodedDocuments, Snapshot
from dsearch.store import Passages

DOCUMENTS_NAME = "documents.safetensors"


def write_encoded(folder: Path, documents: EncodedDocuments) -> None:
    """Write every document that can be found into a run's folder."""
    state = documents.state
    visible = state.visible()
    further = {at: documents.further[at] for at in visible.tolist() if at in documents.further}
    dimension = documents.embeddings.shape[1]
    spans = [passages.spans for passages in further.values()]
    beside = [passages.embeddings for passages in further.values()]
    tensors = {
        "rows": state.rows(visible),
        "embeddings": np.ascontiguousarray(documents.embeddings[visible]),
        "long": state.rows(np.array([*further], np.int64)),
        "passages": np.array([len(of) for of in spans], np.int64),
        "spans": np.concatenate([*spans, np.zeros((0, 2), np.int64)]),
        "further": np.concatenate([*beside, np.zeros((0, dimension), np.float32)]),
    }
    save_file(tensors, folder / DOCUMENTS_NAME)


def read_encoded(folder: Path, present: Snapshot) -> EncodedDocuments:
    """What `write_encoded` wrote, of the documents that are still there.

    Args:
        folder: the run's.
        present: the collection's state.
    """
    tensors = load_file(folder / DOCUMENTS_NAME)
    rows = tensors["rows"]
    at = present.positions_of(rows)
    embeddings = np.zeros((present.positions, tensors["embeddings"].shape[1]), np.float32)
    embeddings[at[at >= 0]] = tensors["embeddings"][at >= 0]
    there = present.rows(present.visible())
    state = present.without(np.setdiff1d(there, rows), present.sequence)
    counts = tensors["passages"]
    spans = np.split(tensors["spans"], np.cumsum(counts)[:-1])
    beside = np.split(tensors["further"], np.cumsum(counts - 1)[:-1])
    places = present.positions_of(tensors["long"]).tolist()
    further = {
        place: Passages(of, embedded)
        for place, of, embedded in zip(places, spans, beside, strict=False)
        if place >= 0
    }
    return EncodedDocuments(state, embeddings, further)
