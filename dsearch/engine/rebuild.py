"""`Rebuilder`: builds generations one at a time, in this process or another, on request or when one is due.

A build in another process only reads the store. Documents written meanwhile are searched beside the live
generation, and beside the new one once that is published. Searches and writes continue throughout.

An approximate index is tuned with queries like those it will receive, against its keys.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from dsearch.corpus import sentences
from dsearch.engine.home import is_given
from dsearch.engine.indexing.ingest import BuiltGeneration, OnProgress, build_files
from dsearch.engine.indexing.tuning import TunedKeys, key_queries, retune, retune_in_child
from dsearch.engine.options import KeyOptions
from dsearch.engine.state.snapshots import Snapshots
from dsearch.engine.state.state import State
from dsearch.errors import Cancelled, Command, DsearchError, InsufficientStorage, InvalidRequest, Unavailable
from dsearch.index.dense.kinds import AUTO, EXHAUSTIVE_BELOW
from dsearch.index.durable import FULL
from dsearch.processes import Report, run_spawned
from dsearch.store import Store
from dsearch.types import Progress

MINIMUM = 1000  # documents: fewer are searched exactly in a millisecond or two
QUERIES = 400  # sample queries that an approximate index is tuned with
_WORDS = 40  # of a sentence: sample queries are of the length of questions

_log = logging.getLogger(__name__)

# (options of keys, W_g) → sample queries, or None without tuning
TuningQueries = Callable[
    [KeyOptions, Float32[np.ndarray, "key_dim encoder_dim"] | None],
    Float32[np.ndarray, "queries key_dim"] | None,
]


class Rebuilder:
    """Builds of one collection.

    Args:
        store: store of the collection.
        snapshots: of its documents.
        writing: lock of its writers, held to publish a generation, not to build it.
        share: share of documents written or deleted since the last build that starts the next one, in another
            process; None for never.
        minimum: number of documents below which no build starts automatically.

    Raises:
        InvalidRequest: a share or a minimum that is not above 0.
    """

    def __init__(
        self,
        store: Store,
        snapshots: Snapshots,
        writing: threading.Lock,
        *,
        share: float | None = None,
        minimum: int = MINIMUM,
    ):
        self._store, self._snapshots, self._writing = store, snapshots, writing
        self.share, self.minimum = check_rebuild(share, minimum)
        self._building = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next: Callable[[], object] | None = None
        self._closed = threading.Event()
        self._progress: Progress | None = None
        self._problem: str | None = None
        self._failed_at = 0  # delta of a failed build, which is not retried at once

    @property
    def by_itself(self) -> bool:
        """True if builds start automatically, in other processes."""
        return self.share is not None

    def status(self) -> dict[str, Any]:
        """State as JSON: whether a build runs, its progress, and why the last one failed."""
        progress = self._progress
        return {
            "share": self.share,
            "running": progress is not None,
            "progress": None if progress is None else asdict(progress),
            "problem": self._problem,
        }

    @property
    def due_at(self) -> float:
        """Delta from which a build starts automatically.

        Delta counts the documents written or deleted since the last build. After a failed build it has to
        grow by half before the next one.
        """
        if self.share is None:
            return float("inf")
        return max(float(self.minimum), self.share * self._snapshots.present.built, 1.5 * self._failed_at)

    def consider(self, queries: TuningQueries) -> None:
        """Start a build in the background if one is due and none runs; returns at once."""
        if not self.by_itself or self._snapshots.delta < self.due_at:
            return
        self.in_background(lambda: self.build(queries, spawned=True))

    def in_background(self, work: Callable[[], object], *, wait: bool = False) -> None:
        """Run `work` in a thread. If other work runs, it is skipped or, with `wait`, comes next.

        `status` and the log report its errors; serving continues.
        """
        with self._starting:
            if self._closed.is_set():
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(work,), name=f"rebuild {self._store.name}", daemon=True
                )
                self._thread.start()
            elif wait:
                self._next = work

    def _work(self, work: Callable[[], object] | None) -> None:
        """Run work, then what was queued meanwhile; the thread ends when nothing is left."""
        while work is not None:
            self._run(work)
            with self._starting:
                work, self._next = self._next, None
                if work is None or self._closed.is_set():
                    self._thread = work = None

    def _run(self, work: Callable[[], object]) -> None:
        """Run work; keep its error for `status`, and the delta at which it failed."""
        try:
            work()
        except Cancelled:
            pass
        except Exception as error:
            if self._closed.is_set():
                return
            self._failed_at = self._snapshots.delta
            self._problem = str(error) if isinstance(error, DsearchError) else repr(error)
            _log.warning("collection %s was not rebuilt: %s", self._store.name, self._problem)

    def build(
        self,
        queries: TuningQueries,
        *,
        keys: KeyOptions | None = None,
        spawned: bool = False,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> int:
        """Build a generation of the present documents and make it live; return its number.

        Args:
            queries: returns sample queries to tune an approximate kind.
            keys: options of the keys; those of the live generation when None.
            spawned: whether to build in a separate process.
            on_progress: receives each stage.
            cancelled: polled if spawned; True stops the build.

        Raises:
            Cancelled, ProcessDied, InsufficientStorage: nothing changed.
        """
        with self._building:
            keys = keys or KeyOptions.of(self._store)

            def report(progress: Progress) -> None:
                self._progress = progress
                if on_progress is not None:
                    on_progress(progress)

            try:
                report(Progress("embeddings", 0, 0, 0.0))
                projection = self._snapshots.key_projection()
                vectors = queries(keys, projection)
                if spawned:
                    built = run_spawned(
                        build_in_child,
                        self._store.path,
                        projection,
                        keys,
                        vectors,
                        on_progress=report,
                        cancelled=lambda: self._closed.is_set() or (cancelled is not None and cancelled()),
                    )
                else:
                    built = build_files(
                        self._store, key_projection=projection, keys=keys, queries=vectors, on_progress=report
                    )
                generation = self._snapshots.opened(built)
                with self._writing:
                    self._snapshots.publish(built, generation)
            finally:
                self._progress = None
            self._failed_at, self._problem = 0, None
        return built.number

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep builds from running during the block; waits for a running one."""
        with self._building:
            yield

    def wait(self) -> None:
        """Wait for the end of background work."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        """Cancel background work and wait for its end; safe to call twice."""
        with self._starting:
            self._closed.set()
        self.wait()


def check_rebuild(share: float | None, minimum: int) -> tuple[float | None, int]:
    """Check both and return them.

    Raises:
        InvalidRequest: a share or a minimum that is not above 0.
    """
    if share is not None and not share > 0:
        raise InvalidRequest(f"rebuild_share={share}; use a number above 0, or none for never")
    if minimum < 1:
        raise InvalidRequest(f"rebuild_minimum={minimum}; use an integer of at least 1")
    return share, minimum


def build_in_child(
    report: Report,
    path: Path,
    key_projection: np.ndarray | None,
    keys: KeyOptions,
    queries: np.ndarray | None,
) -> BuiltGeneration:
    """Run `build_files` for `run_spawned`, with lower priority than the processes that answer searches."""
    os.nice(5)
    with Store.open(path, readonly=True) as store:
        return build_files(
            store, key_projection=key_projection, keys=keys, queries=queries, on_progress=report
        )


def tuning_queries(
    collection: State,
    keys: KeyOptions,
    projection: Float32[np.ndarray, "key_dim encoder_dim"] | None,
    texts: Sequence[str] | None = None,
) -> Float32[np.ndarray, "queries key_dim"] | None:
    """Return queries against the keys of a generation with W_g = `projection`; None without tuning.

    They are `texts`, by default sentences of the documents.
    """
    count = collection.store.count().documents
    exhaustive = keys.kind == AUTO and count < EXHAUSTIVE_BELOW
    if not keys.approximate or exhaustive or count == 0:
        return None
    folded = folded_queries(collection, texts)
    return None if folded is None else key_queries(folded, projection)


def folded_queries(
    collection: State, texts: Sequence[str] | None = None
) -> Float32[np.ndarray, "queries encoder_dim"] | None:
    """Return folded queries of the live head; None for supplied embeddings without texts."""
    if is_given(collection.store):
        return None
    texts = list(texts)[:QUERIES] if texts else _sentences(collection)
    if not texts:
        return None
    import torch

    head = collection.head(collection.live_model)
    with torch.inference_mode():
        folded = head.fold(head.queries(collection.query_states(texts, "dense")))
    # Heads share the index: the queries of all heads for each text, and at most QUERIES in all.
    step = math.ceil(folded.shape[0] * folded.shape[1] / QUERIES)
    return np.ascontiguousarray(folded[::step].flatten(0, 1)[:QUERIES].numpy(), np.float32)


def measured_live(collection: State, *, spawned: bool) -> TunedKeys | None:
    """Measure, and tune if necessary, the live index with queries of the live head.

    Args:
        collection: state of the collection.
        spawned: measure in another process.

    Returns:
        None for a kind of index that compares every key, and without queries.
    """
    if not collection.snapshot.generation.dense.parameters:
        return None
    folded = folded_queries(collection)
    if folded is None:
        return None
    store = collection.store
    arguments = (collection.live_model, folded, KeyOptions.of(store).recall_target)
    if spawned:
        return run_spawned(retune_in_child, store.path, *arguments)
    return retune(store, *arguments)


def _sentences(collection: State) -> list[str]:
    """Return a sentence of each of up to `QUERIES` documents of the collection; deterministic."""
    rows = collection.store.rows()
    spread = rows[np.linspace(0, len(rows) - 1, min(QUERIES, len(rows))).astype(np.int64)]
    chance = np.random.default_rng(0)
    texts: list[str] = []
    for document in collection.store.documents(spread):
        parts = sentences(document.text) or [document.content]
        words = parts[int(chance.integers(len(parts)))].split()[:_WORDS]
        if words:
            texts.append(" ".join(words))
    return texts


@contextmanager
def disk_errors(store: Store, command: str) -> Generator[None]:
    """Translate an error of the file system inside the block, which changes no document.

    Args:
        store: store of the collection.
        command: command to run again, "refresh" or "compact".

    Raises:
        InsufficientStorage: the disk is full.
        Unavailable: it cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        advice = "free space" if full else "check the disk (is it mounted read-only now?) and permissions"
        raise (InsufficientStorage if full else Unavailable)(
            f"{store.path}: {command} was stopped by the disk ({error}). All documents stand, and a whole "
            f"index answers; what was begun is removed by the next run: {advice}, then run it again",
            hint=Command(command, ("-c", store.name)),
        ) from error
