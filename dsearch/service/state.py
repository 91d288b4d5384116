"""`Service`: the shared state of the routes, with one thread for searches and one for writes.

It also supplies the values that `/metrics` reads on request: queues, the query cache, and each open
collection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from dsearch.encoder import QueryCache, prompts_of
from dsearch.engine import Collection, SearchEngine, calls
from dsearch.engine.feedback import Episodes
from dsearch.errors import DsearchError, amount
from dsearch.operations import Call
from dsearch.service.admission import LONG_S, Admission, EventLoopLag, Refusal
from dsearch.service.collections import Catalogue
from dsearch.service.deadline import InTime
from dsearch.service.errors import NotReady
from dsearch.service.feedback import Impressions
from dsearch.service.tasks.jobs import OpenEngine, open_default
from dsearch.service.tasks.manager import Tasks
from dsearch.service.tasks.uploads import MAX_BYTES
from dsearch.service.telemetry import Metrics, Reading
from dsearch.service.worker import Worker

SEARCHES_WAITING = 256
SEARCH_CHARACTERS_WAITING = 1024 * 1024
WRITES_WAITING = 64
WRITE_CHARACTERS_WAITING = 32 * 1024 * 1024
FEEDBACK_WAITING = 64
ENCODINGS_WAITING = 64
ENCODING_CHARACTERS_WAITING = 16 * 1024 * 1024
CALIBRATE_AFTER_S = 5.0  # of a write: an upload has many
LEFT_FOLDER = ".uploads"  # of the home: files of the vector stores that earlier releases had

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Service:
    """Engine, workers and tasks that the routes share.

    Searches never wait for writes: documents are encoded in the writing thread. Reads by id go to the
    framework's thread pool.

    Args:
        engine: engine opened by the caller, who closes it after the last request.
        explore: share of search pages on which a coin swaps two positions (engine/feedback.py).
        open_engine: function that opens the same home readonly, in a task's process; with the default
            encoder if None.
        task_memory_bytes: memory limit of a task's process beyond its libraries; the machine's when None.
        device: device on which tasks train.
        migrates_to: name of the encoder that collections are migrated to.
        rerankers: models that a training may name.
        model_upload_bytes: most bytes of a trained model that is sent to be judged.
    """

    def __init__(
        self,
        engine: SearchEngine,
        *,
        explore: float = 0.0,
        open_engine: OpenEngine | None = None,
        task_memory_bytes: int | None = None,
        device: str = "cpu",
        migrates_to: str | None = None,
        rerankers: Iterable[str] = (),
        model_upload_bytes: int = MAX_BYTES,
    ):
        self.migrates_to = migrates_to
        self.rerankers = frozenset(rerankers)
        self.metrics = Metrics()
        self.impressions = Impressions(explore=explore)
        self.episodes = Episodes()
        self.catalogue = Catalogue(engine)
        self.searching = Worker(
            "search",
            waiting=SEARCHES_WAITING,
            waiting_characters=SEARCH_CHARACTERS_WAITING,
            waiting_s=LONG_S,
            most_together=lambda: self.admission.batch,
            observer=self.metrics,
        )
        self.writing = Worker(
            "write",
            waiting=WRITES_WAITING,
            waiting_characters=WRITE_CHARACTERS_WAITING,
            finishes=True,
            observer=self.metrics,
        )
        self.feedback = Worker("feedback", waiting=FEEDBACK_WAITING, finishes=True, observer=self.metrics)
        self.encoding = Worker(  # of texts that are not stored: neither searches nor writes wait for them
            "encode",
            waiting=ENCODINGS_WAITING,
            waiting_characters=ENCODING_CHARACTERS_WAITING,
            observer=self.metrics,
        )
        self.tasks = Tasks(
            engine,
            self.catalogue,
            open_engine or partial(open_default, engine.home.path),
            memory_bytes=task_memory_bytes,
            device=device,
            model_upload_bytes=model_upload_bytes,
            stored=self._calibrate_from_thread,
        )
        self._home = engine.home.path
        self.watchers = 0  # of tasks
        self.leaving = False
        self.lag = EventLoopLag()
        self.admission = Admission(lambda: self.searching.pace_s, self.lag)
        self.refusal = Refusal(self.admission, lambda: self.leaving, self.metrics)
        engine.query_cache.on_encode = self.metrics.encoded
        self.metrics.read(
            lambda: readings_of(
                self.catalogue, engine.query_cache, (self.searching, self.writing), self.lag, self.admission
            )
        )
        self._warming: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.calibrate_after_s = CALIBRATE_AFTER_S
        self._calibrating: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start the workers, and load encoder and indexes before the first search."""
        self._loop = asyncio.get_running_loop()
        _name_left_files(self._home)
        self.searching.start()
        self.writing.start()
        self.feedback.start()
        self.encoding.start()
        self.tasks.start()
        self.lag.start()
        self._warming = self._loop.create_task(self.searching.run(self._warm))

    def leave(self) -> None:
        """Report not ready from now on; arriving requests are still answered, until `stop`."""
        self.leaving = True
        self.tasks.request_stop()

    async def stop(self) -> None:
        """Finish waiting work and end the workers."""
        self.leave()
        for calibrating in self._calibrating.values():
            calibrating.cancel()
        await self.lag.stop()
        for worker in (self.searching, self.writing, self.feedback, self.encoding):
            await run_in_threadpool(worker.stop)
        await run_in_threadpool(self.tasks.stop)
        if self._warming is not None:
            with contextlib.suppress(BaseException):
                await self._warming

    async def warm(self) -> None:
        """Return when encoder and indexes are loaded, or could not be: `require_ready` says which."""
        if self._warming is not None:
            await asyncio.wait([self._warming])

    def require_ready(self) -> None:
        """Return if searches are answered now.

        Raises:
            NotReady: it is starting or stopping, or it failed to start (the log says why).
            EncoderUnavailable: the encoder's weights are not there.
        """
        started = self._warming is not None and self._warming.done()
        if not started or self.leaving or not self.searching.alive:
            raise NotReady("the service loads its encoder and indexes, or is stopping; ask again in a moment")
        assert self._warming is not None
        error = self._warming.exception()
        if isinstance(error, DsearchError):
            raise error
        if error is not None:
            _log.error("the service did not start", exc_info=error)
            raise NotReady("the encoder could not be loaded; the server's log says why")

    async def answer(self, call: Call[T]) -> T:
        """Carry out a declared call about one collection, which is held until it is done.

        Raises:
            DsearchError: what its function raises, see `dsearch/engine/calls.py`.
            Overloaded, DeadlinePassed.
        """
        name = calls.collection_of(call)
        if call.place.writes:
            return await self.writing.run(self.catalogue.write(calls.answer, name, call))
        return await self.read(self.catalogue.call(calls.answer, name, call))

    async def read(self, compute: Callable[[], T]) -> T:
        """The result of a read that needs neither encoder nor index.

        Raises:
            DeadlinePassed: the request's time is over.
        """
        async with InTime("read"):
            return await run_in_threadpool(compute)

    async def finish(self, compute: Callable[[], T]) -> T:
        """The result of a short write that needs no worker, such as taking on a task.

        It is finished whatever the deadline, and whether or not the client stays: a request must not be
        answered as too late and be carried out all the same.
        """
        finishing = asyncio.ensure_future(run_in_threadpool(compute))
        finishing.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left
        return await asyncio.shield(finishing)

    def calibrate_soon(self, name: str) -> None:
        """Calibrate the live version by its documents in a while, when the writes of an upload are over."""
        if name not in self._calibrating and not self.leaving:
            # An empty context: the deadline of the request that wrote is not this task's.
            self._calibrating[name] = asyncio.get_running_loop().create_task(
                self._calibrate(name), context=Context()
            )

    def _calibrate_from_thread(self, name: str) -> None:
        assert self._loop is not None  # tasks run from the start on
        with contextlib.suppress(RuntimeError):  # closed: the next start calibrates at the next write
            self._loop.call_soon_threadsafe(self.calibrate_soon, name)

    async def _calibrate(self, name: str) -> None:
        def calibrate() -> None:
            from dsearch.training.confidence import calibrate_by_documents

            with self.catalogue.using(name) as collection:
                if isinstance(collection, Collection):
                    calibrate_by_documents(collection)

        try:
            await asyncio.sleep(self.calibrate_after_s)
            await self.encoding.run(calibrate)
        except (DsearchError, OSError) as error:  # answers lack their confidence, nothing else
            _log.warning("collection %s could not be calibrated: %s", name, error)
        finally:
            del self._calibrating[name]

    def _warm(self) -> None:
        encodes: list[bool] = []
        for name in self.catalogue.engine.names():
            # A damaged collection reports it on use; the others are ready.
            with contextlib.suppress(DsearchError), self.catalogue.whole(name) as collection:
                _ = collection.snapshot
                encodes.append(collection.has_encoder)
        if any(encodes) or not encodes:  # collections with supplied embeddings need no encoder
            self.catalogue.engine.load_encoder()
        for name in self.catalogue.engine.names():  # of one that was migrated it is another
            with contextlib.suppress(DsearchError), self.catalogue.whole(name) as collection:
                encoder = collection.encoder if collection.has_encoder else None
                if encoder is not None and (unused := prompts_of(encoder)) is not None:
                    _log.warning("collection %s: %s", name, unused)


def _name_left_files(home: Path) -> None:
    """Tell the operator of files that clients sent to an earlier release, which no route has any more."""
    folder = home / LEFT_FOLDER
    if left := [place.stat().st_size for place in folder.glob("*.bin")]:
        _log.warning(
            "%s has %s (%d bytes) that were sent to an earlier release; the documents made of them stay. "
            "Each is ID.bin with its name in ID.json: send those that are wanted again to POST "
            "/v1/collections/{collection}/files, then delete the folder",
            folder,
            amount(len(left), "file"),
            sum(left),
        )


async def _service(request: Request) -> Service:
    return request.app.state.service


TheService = Annotated[Service, Depends(_service)]


def readings_of(
    catalogue: Catalogue,
    cache: QueryCache,
    workers: Sequence[Worker],
    lag: EventLoopLag,
    admission: Admission,
) -> list[Reading]:
    """Return queue depths, the cache, and the metrics of every open collection."""
    readings: list[Reading] = [
        ("dsearch_queue_depth", "Jobs that wait.", {"worker": worker.name}, worker.depth)
        for worker in workers
    ]
    readings += [
        ("dsearch_event_loop_lag_seconds", "How late the event loop is.", {}, lag.seconds),
        ("dsearch_searches_admitted", "Searches that may be in the service at once.", {}, admission.limit),
        ("dsearch_query_cache_hits_total", "Queries whose embedding was kept.", {}, cache.hits),
        ("dsearch_query_cache_misses_total", "Queries that were encoded.", {}, cache.misses),
        ("dsearch_query_cache_bytes", "Bytes of kept embeddings.", {}, cache.bytes),
        ("dsearch_query_cache_entries", "Kept embeddings.", {}, len(cache)),
    ]
    for name in catalogue.opened():
        try:
            with catalogue.using(name) as collection:
                if isinstance(collection, Collection):
                    readings += _of_collection(collection)
        except DsearchError:
            continue  # deleted since, or damaged, which its next use reports
    return readings


def _of_collection(collection: Collection) -> Iterator[Reading]:
    label = {"collection": collection.name}
    model = {**label, "model": collection.live_model}
    snapshot = collection.snapshot
    yield "dsearch_collection_generation", "The generation that answers.", label, snapshot.generation.number
    yield "dsearch_collection_model", "1 for the model that answers.", model, 1
    yield "dsearch_collection_sequence", "The last operation that searches see.", label, snapshot.sequence
    if (drift := collection.query_drift) is not None:
        yield "dsearch_query_drift", "Distance of queries from training queries, in variances.", model, drift
    yield "dsearch_collection_documents", "Documents that can be found.", label, snapshot.documents
    yield "dsearch_collection_delta", "Documents written since the last build.", label, len(snapshot.fresh)
