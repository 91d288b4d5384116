"""`ModelUploads`: trained models that clients sent, each a file until the task that judges it has ended.

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
from dsearch.index.durable import file_digest, sync_file, sync_folder
from dsearch.service.errors import Overloaded
from dsearch.service.wire.requests import limited
from dsearch.service.wire.whole import whole_or_gone

FOLDER = "uploads"  # in that of the tasks
MAX_BYTES = 512 * 1024**2
WAITING = 8  # times the most bytes of one, for all that wait for their tasks
_AT_A_TIME = 1 << 20
_SUFFIX = ".safetensors"
_LARGER = (
    " (the server's setting model_upload_bytes); low-rank factors of an encoder are smaller than its weights "
    "(encoder_training='lora'), and dsearch.save_model, in the process that has the collection's folder, has "
    "no limit"
)


class ModelUploads:
    """The files of models in a folder of tasks.

    Args:
        tasks: folder of the tasks.
        max_bytes: most bytes of one.
    """

    def __init__(self, tasks: Path, max_bytes: int = MAX_BYTES):
        self.folder = tasks / FOLDER
        self._max_bytes = max_bytes

    async def receive(self, request: Request) -> dict[str, str]:
        """Keep a body as a file, on disk on return; the fields of a task's request that name it.

        Raises:
            BodyTooLarge: more bytes than one may have.
            Overloaded: too many bytes wait for their tasks.
            InsufficientStorage, Unavailable: the disk is full, or cannot be written.
        """
        name, digest, buffer = uuid.uuid4().hex, hashlib.sha256(), bytearray()
        place = self.folder / f"{name}{_SUFFIX}"
        with whole_or_gone(place, problem="the model could not be kept until it is judged"):
            file = await run_in_threadpool(self._begin, place)
            try:
                async for some in limited(request, self._max_bytes, _LARGER):
                    buffer += some
                    if len(buffer) >= _AT_A_TIME:
                        await run_in_threadpool(_write, file, buffer, digest)
                        buffer = bytearray()
                await run_in_threadpool(_write, file, buffer, digest)
            finally:
                file.close()
            await run_in_threadpool(self._finish, place)
        return {"file": name, "digest": digest.hexdigest()}

    def verified(self, upload: Mapping[str, str]) -> Path:
        """The place of a file, whose bytes are those that were sent.

        Args:
            upload: what `receive` returned.

        Raises:
            CorruptData: they are not.
        """
        place = self.folder / f"{upload['file']}{_SUFFIX}"
        if not place.is_file() or file_digest(place)[1] != upload["digest"]:
            raise CorruptData("the model that was sent is gone from the disk, or was changed; send it again")
        return place

    def delete(self, request: Mapping[str, Any]) -> None:
        """Delete the file that a task's request names, if it names one."""
        if "file" in request:
            (self.folder / f"{request['file']}{_SUFFIX}").unlink(missing_ok=True)

    def keep_only(self, requests: Collection[Mapping[str, Any]]) -> None:
        """Delete what no task's request names: a server ended before it had taken it on."""
        named = {request.get("file") for request in requests}
        for place in self.folder.glob(f"*{_SUFFIX}"):
            if place.stem not in named:
                place.unlink(missing_ok=True)

    def _begin(self, place: Path) -> BinaryIO:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        waiting = sum(other.stat().st_size for other in self.folder.glob(f"*{_SUFFIX}"))
        if waiting > (WAITING - 1) * self._max_bytes:
            raise Overloaded(f"models of {waiting} bytes wait to be judged; send this one when some are done")
        return place.open("xb")

    def _finish(self, place: Path) -> None:
        sync_file(place)
        sync_folder(self.folder)


def _write(file: BinaryIO, some: bytearray, digest: Any) -> None:
    digest.update(some)
    file.write(some)
