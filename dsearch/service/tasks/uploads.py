"""`TaskUploads`: what clients sent for tasks, a file for each body, until its task has ended.

A body goes to disk part by part while it arrives, and is never whole in memory. Its name is made here, and
its digest goes with the task: a file that was changed meanwhile is refused.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from dsearch.errors import CorruptData
from dsearch.index.durable import file_digest, sync_file, sync_folder, whole_or_gone
from dsearch.service.errors import Overloaded
from dsearch.service.wire.requests import limited

FOLDER = "uploads"  # in that of the tasks
MAX_BYTES = 512 * 1024**2  # of a model
MAX_FORM_BYTES = 256 * 1024**2  # of files that become documents
WAITING = 8  # times the most bytes of one, for all that wait for their tasks
_AT_A_TIME = 1 << 20
_LARGER_MODEL = (
    " (the server's setting model_upload_bytes); low-rank factors of an encoder are smaller than its weights "
    "(encoder_training='lora'), and dsearch.save_model, in the process that has the collection's folder, has "
    "no limit"
)
_LARGER_FORM = "; send the files in several requests, or index them where they lie with dsearch index"


class TaskUploads:
    """The bodies of one kind in a folder of tasks.

    Args:
        tasks: folder of the tasks.
        max_bytes: most bytes of one.
        suffix: of their names.
        larger: what to do with a larger one.
    """

    def __init__(self, tasks: Path, max_bytes: int, suffix: str, larger: str):
        self.folder = tasks / FOLDER
        self._max_bytes, self._suffix, self._larger = max_bytes, suffix, larger

    @classmethod
    def of_models(cls, tasks: Path, max_bytes: int = MAX_BYTES) -> TaskUploads:
        """Models that were trained elsewhere and are to be judged."""
        return cls(tasks, max_bytes, ".safetensors", _LARGER_MODEL)

    @classmethod
    def of_forms(cls, tasks: Path) -> TaskUploads:
        """Forms with files that are to become documents."""
        return cls(tasks, MAX_FORM_BYTES, ".form", _LARGER_FORM)

    async def receive(self, request: Request) -> dict[str, str]:
        """Keep a body as a file, on disk on return; the fields of a task's request that name it.

        Raises:
            BodyTooLarge: more bytes than one may have.
            Overloaded: too many bytes wait for their tasks.
            InsufficientStorage, Unavailable: the disk is full, or cannot be written.
        """
        name, digest, buffer = uuid.uuid4().hex, hashlib.sha256(), bytearray()
        place = self.folder / f"{name}{self._suffix}"
        with whole_or_gone(place, problem="what was sent could not be kept for its task"):
            file = await run_in_threadpool(self._begin, place)
            try:
                async for some in limited(request, self._max_bytes, self._larger):
                    buffer += some
                    if len(buffer) >= _AT_A_TIME:
                        await run_in_threadpool(_write, file, buffer, digest)
                        buffer = bytearray()
                await run_in_threadpool(_write, file, buffer, digest)
            finally:
                file.close()
            await run_in_threadpool(self._finish, place)
        return {"file": name, "digest": digest.hexdigest()}

    def place(self, upload: Mapping[str, Any]) -> Path:
        """Where the file of an upload lies."""
        return self.folder / f"{upload['file']}{self._suffix}"

    def verified(self, upload: Mapping[str, Any]) -> Path:
        """The place of a file, whose bytes are those that were sent.

        Args:
            upload: what `receive` returned.

        Raises:
            CorruptData: they are not.
        """
        place = self.place(upload)
        if not place.is_file() or file_digest(place)[1] != upload["digest"]:
            raise CorruptData("what was sent is gone from the disk, or was changed there; send it again")
        return place

    def delete(self, request: Mapping[str, Any]) -> None:
        """Delete the file that a task's request names, if it names one."""
        if "file" in request:
            self.place(request).unlink(missing_ok=True)

    def keep_only(self, requests: Collection[Mapping[str, Any]]) -> None:
        """Delete what no task's request names: a server ended before it had taken it on."""
        named = {request.get("file") for request in requests}
        for place in self.folder.glob(f"*{self._suffix}"):
            if place.stem not in named:
                place.unlink(missing_ok=True)

    def _begin(self, place: Path) -> BinaryIO:
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for above in (self.folder.parent, self.folder.parent.parent):  # or a power cut takes it along
                sync_folder(above)
        waiting = sum(other.stat().st_size for other in self.folder.glob(f"*{self._suffix}"))
        if waiting > (WAITING - 1) * self._max_bytes:
            raise Overloaded(
                f"{waiting} bytes that were sent wait for their tasks; try again when some are done"
            )
        return place.open("xb")

    def _finish(self, place: Path) -> None:
        sync_file(place)
        sync_folder(self.folder)


def _write(file: BinaryIO, some: bytearray, digest: Any) -> None:
    digest.update(some)
    file.write(some)
