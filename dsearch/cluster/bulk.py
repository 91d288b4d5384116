"""Embed pending documents on the machines of a cluster; one writer commits the results, block by block.

    pending rows → blocks → Ray Data: read from the home, encode → here: one operation of the store a block

The rows of a committed block are no longer pending, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.encoder.text_encoder import length_sorted_batches
from dsearch.engine.indexing.chunking import PassageLengths, encode
from dsearch.engine.indexing.ingest import OnProgress
from dsearch.errors import InvalidRequest
from dsearch.store import Store
from dsearch.store.records import Passages
from dsearch.types import Progress

BLOCK = 256  # documents; an interruption loses at most one block of each worker


class EncodeBlocks:
    """Worker that encodes blocks: an encoder, and the collection opened readonly."""

    def __init__(self, home: str, collection: str, encoder: Mapping[str, Any], threads: int):
        from dsearch.threads import set_threads

        set_threads(threads)
        from dsearch.service.tasks.jobs import open_readonly

        self._engine = open_readonly(Path(home), **encoder)
        self._collection = self._engine.collection(collection)
        self._encoder = self._collection.encoder

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Encode a block's documents; embeddings as bytes that NumPy reads without pickle."""
        answers: list[bytes] = []
        for packed in batch["rows"]:
            rows = np.frombuffer(packed, np.int64)
            store = self._collection.store
            embeddings, further = encode(self._encoder, store.documents(rows), PassageLengths.of(store))
            answers.append(_packed(rows, embeddings, {int(rows[at]): cut for at, cut in further.items()}))
        return {"encoded": answers}


def encode_on_cluster(
    store: Store,
    *,
    encoder: Mapping[str, Any],
    workers: int = 1,
    threads: int = 1,
    num_cpus: float = 1.0,
    block: int = BLOCK,
    on_progress: OnProgress | None = None,
) -> int:
    """Encode the pending documents of a store on the joined cluster, and return their number.

    Args:
        store: opened for writing, in a folder visible to all machines.
        encoder: as `open_readonly` takes them: `encoder` (a name or folder), `device`, optionally `dtype`,
            `backend`, `next_encoder` and `cache`.
        workers: number of encoders.
        threads: threads of native libraries, for each worker.
        num_cpus: logical CPUs of a worker.
        block: documents of a block.
        on_progress: called after each committed block.

    Raises:
        InvalidRequest: a number below 1.
        EncoderMismatch, EncoderUnavailable: from a worker; committed blocks stay.
    """
    for name, value in {"workers": workers, "threads": threads, "block": block}.items():
        if value < 1:
            raise InvalidRequest(f"{name}={value}; use 1 or more")
    import ray.data

    pending = store.pending()
    if len(pending.rows) == 0:
        return 0
    blocks = [
        {"rows": np.ascontiguousarray(pending.rows[batch], np.int64).tobytes()}
        for batch in length_sorted_batches(pending.lengths, block)
    ]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    encoded = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map_batches(
        EncodeBlocks,
        fn_constructor_args=(str(store.path.parent.resolve()), store.name, dict(encoder), threads),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(blocks))),
        num_cpus=num_cpus,
    )
    started, done = time.monotonic(), 0
    for line in encoded.iter_rows():
        rows, embeddings, passages = _unpacked(line["encoded"])
        store.set_embeddings(rows, embeddings, passages)
        done += len(rows)
        if on_progress is not None:
            on_progress(Progress("encode", done, len(pending.rows), time.monotonic() - started))
    return done


def _packed(rows: np.ndarray, embeddings: np.ndarray, passages: Mapping[int, Passages]) -> bytes:
    arrays: dict[str, np.ndarray] = {"rows": rows, "embeddings": embeddings}
    for row, cut in passages.items():
        arrays[f"spans-{row}"], arrays[f"further-{row}"] = cut.spans, cut.embeddings
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _unpacked(packed: bytes) -> tuple[np.ndarray, np.ndarray, dict[int, Passages]]:
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        long = [int(name.removeprefix("spans-")) for name in arrays.files if name.startswith("spans-")]
        passages = {row: Passages(arrays[f"spans-{row}"], arrays[f"further-{row}"]) for row in long}
        return arrays["rows"], arrays["embeddings"], passages
