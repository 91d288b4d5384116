"""`Attachments`: uploaded files become documents of a collection, one file after another, in the background.

A file is stored whole or not at all. Files that are stored are known by their documents; what is here is
known until the service stops: files that wait, that could not be stored, and the batches that they came in.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from starlette.concurrency import run_in_threadpool

from dsearch.engine import Collection
from dsearch.errors import Cancelled, Conflict, DsearchError, InvalidRequest, MissingExtra, NotFound, amount
from dsearch.service.batching.worker import Worker
from dsearch.service.collections import Catalogue
from dsearch.service.error_texts import without_home
from dsearch.service.errors import NotReady, Overloaded
from dsearch.service.uploads.files import Uploads
from dsearch.service.uploads.reading import FIELD, MAX_DOCUMENTS, Attributes, documents_of, part_id
from dsearch.types import Document

MAX_WAITING = 1000
MAX_FAILED = 1000
MAX_BATCHES = 256

Status = Literal["in_progress", "completed", "cancelled", "failed"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Attachment:
    """A file that is being attached to a collection.

    Attributes:
        collection: its name.
        file: id of the file.
        attributes: metadata of its documents.
        created_at: seconds since 1970.
        status: state of it.
        code: kind of the error; None without one.
        problem: what is wrong, and what to do.
    """

    collection: str
    file: str
    attributes: Attributes
    created_at: int
    status: Status = "in_progress"
    code: Literal["server_error", "unsupported_file", "invalid_file"] | None = None
    problem: str = ""


@dataclass(slots=True, eq=False)
class AttachedBatch:
    """Files that were attached together.

    Attributes:
        id: id of the batch.
        collection: name of their collection.
        created_at: seconds since 1970.
        files: files in the order of the request.
        work: asyncio task that ends when no file waits.
    """

    id: str
    collection: str
    created_at: int
    files: list[Attachment]
    work: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def status(self) -> Status:
        """State of the batch, by the states of its files."""
        states = {attachment.status for attachment in self.files}
        if "in_progress" in states:
            return "in_progress"
        if "cancelled" in states:
            return "cancelled"
        return "failed" if states == {"failed"} else "completed"


class Attachments:
    """Files that are being attached to collections; used by the event loop alone.

    Args:
        uploads: the files.
        catalogue: the collections.
        writing: the worker that writes.
        after: called with the name of a collection that was written to.
    """

    def __init__(
        self, uploads: Uploads, catalogue: Catalogue, writing: Worker, after: Callable[[str], object]
    ):
        self._uploads = uploads
        self._catalogue = catalogue
        self._writing = writing
        self._after = after
        self._turn = asyncio.Lock()  # one file is read at a time
        self._unfinished: OrderedDict[tuple[str, str], Attachment] = OrderedDict()
        self._batches: OrderedDict[str, AttachedBatch] = OrderedDict()
        self._stopping = threading.Event()

    def start(self, collection: str, files: Sequence[tuple[str, Attributes]], id: str) -> AttachedBatch:
        """Begin to attach files, which exist; the batch is kept under its id.

        Raises:
            Overloaded: too many wait.
            NotReady: the service is stopping.
        """
        if self._stopping.is_set():
            raise NotReady("the service is stopping; attach the files again in a moment")
        waiting = sum(attachment.status == "in_progress" for attachment in self._unfinished.values())
        if waiting + len(files) > MAX_WAITING:
            raise Overloaded(
                f"{amount(waiting, 'file waits', 'files wait')} already, of at most {MAX_WAITING}; try "
                "again after the seconds in "
                "Retry-After"
            )
        now = int(time.time())
        batch = AttachedBatch(
            id, collection, now, [Attachment(collection, *attachment, created_at=now) for attachment in files]
        )
        for attachment in batch.files:
            self._unfinished[collection, attachment.file] = attachment
        # A context of its own: the deadline of the request is not that of the work.
        batch.work = asyncio.get_running_loop().create_task(self._attach_all(batch.files), context=Context())
        self._batches[id] = batch
        while len(self._batches) > MAX_BATCHES:
            oldest = next(
                (old for old, batch in self._batches.items() if batch.status != "in_progress"), None
            )
            if oldest is None:
                break
            del self._batches[oldest]
        return batch

    async def settle(self, batch: AttachedBatch, seconds: float) -> None:
        """Wait until a batch is done, or for so long."""
        if batch.work is not None:
            await asyncio.wait([batch.work], timeout=seconds)

    def batch(self, collection: str, id: str) -> AttachedBatch:
        """The batch of this id; raises NotFound."""
        batch = self._batches.get(id)
        if batch is None or batch.collection != collection:
            raise NotFound(
                f"no batch {id[:80]!r}; batches are kept until the service stops, and "
                f"GET /v1/vector_stores/{collection}/files lists the files of all"
            )
        return batch

    def cancel(self, batch: AttachedBatch) -> None:
        """Cancel the files of a batch that are still waiting."""
        for attachment in batch.files:
            if attachment.status == "in_progress":
                attachment.status = "cancelled"

    def unfinished(self, collection: str) -> dict[str, Attachment]:
        """Files of a collection that wait, failed or were cancelled, by id."""
        return {
            file: attachment for (name, file), attachment in self._unfinished.items() if name == collection
        }

    def forget(self, collection: str, file: str | None = None) -> bool:
        """Forget the failed files of a collection, or one of them; return True if there were any."""
        gone = [key for key in self._unfinished if key[0] == collection and (file is None or key[1] == file)]
        for key in gone:
            attachment = self._unfinished.pop(key)
            if attachment.status == "in_progress":
                attachment.status = "cancelled"
        return bool(gone)

    async def stop(self) -> None:
        """Finish the file that is stored; leave the others out."""
        self._stopping.set()
        for batch in self._batches.values():
            self.cancel(batch)
        works = [batch.work for batch in self._batches.values() if batch.work is not None]
        if works:
            await asyncio.wait(works)

    async def _attach_all(self, files: Sequence[Attachment]) -> None:
        for attachment in files:
            async with self._turn:
                if attachment.status == "in_progress":
                    await self._attach(attachment)
        while len(self._unfinished) > MAX_WAITING + MAX_FAILED:
            key = next(
                (key for key, attachment in self._unfinished.items() if attachment.status != "in_progress"),
                None,
            )
            if key is None:
                break
            del self._unfinished[key]

    async def _attach(self, attachment: Attachment) -> None:
        try:
            documents = await run_in_threadpool(self._read, attachment)
            if attachment.status != "in_progress":
                return
            characters = sum(len(document.text) for document in documents)
            await self._writing.run(partial(self._store, attachment, documents), characters=characters)
        except Cancelled:
            attachment.status = "cancelled"
        except DsearchError as error:
            attachment.status, attachment.code = "failed", _code_of(error)
            attachment.problem = without_home(str(error))
        except Exception:
            _log.exception("file %s could not be attached to %s", attachment.file, attachment.collection)
            attachment.status, attachment.code = "failed", "server_error"
            attachment.problem = "an unexpected error; the server's log has it under the id of the file"
        else:
            attachment.status = "completed"
            if self._unfinished.get((attachment.collection, attachment.file)) is attachment:
                del self._unfinished[attachment.collection, attachment.file]
            self._after(attachment.collection)

    def _read(self, attachment: Attachment) -> list[Document]:
        upload = self._uploads.get(attachment.file)
        place = self._uploads.verify(attachment.file)
        return documents_of(upload, place, attachment.attributes, stopping=self._stopping.is_set)

    def _store(self, attachment: Attachment, documents: Sequence[Document]) -> None:
        self._uploads.get(attachment.file)  # it may have been deleted since, in this thread
        with self._catalogue.writing(attachment.collection, encoder=True) as collection:
            before = ids_of(collection, attachment.file)
            collection.upsert(list(documents))
            ids = {document.id for document in documents}
            if left := [id for id in before if id not in ids]:
                collection.delete(left)


def _code_of(error: DsearchError) -> Literal["server_error", "unsupported_file", "invalid_file"]:
    if isinstance(error, MissingExtra) or "are not read" in str(error):
        return "unsupported_file"
    return "invalid_file" if isinstance(error, InvalidRequest) else "server_error"


def ids_of(collection: Collection, file: str) -> list[str]:
    """Ids of the documents that a file gave; none where it was not attached."""
    try:
        document = collection.store.get(file)
    except NotFound:
        return []
    own = document.metadata.get(FIELD)
    parts = own.get("parts") if isinstance(own, Mapping) else None
    count = min(parts, MAX_DOCUMENTS) if isinstance(parts, int) else 1  # anybody may write such metadata
    return [part_id(file, part) for part in range(1, count + 1)]


def detach(catalogue: Catalogue, name: str, file: str) -> bool:
    """Delete the documents that a file gave; True if there were any.

    Raises:
        CollectionNotFound, Conflict (the home is readonly).
    """
    with catalogue.writing(name) as collection:
        ids = ids_of(collection, file)
        return bool(ids) and collection.delete(ids).deleted > 0


def detach_everywhere(catalogue: Catalogue, file: str) -> None:
    """Delete the documents that a file gave from every collection; damaged ones are passed over."""
    for name in catalogue.names():
        try:
            detach(catalogue, name, file)
        except Conflict:
            raise
        except DsearchError as error:
            _log.warning("file %s could not be taken out of %s: %s", file, name, error)
