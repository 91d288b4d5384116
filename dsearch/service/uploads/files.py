"""`Uploads`: files that clients sent, kept in the home's folder `.uploads` until they are deleted.

A file is its bytes, `ID.bin`, and its record, `ID.json`, which is renamed into place last: without a record
there is no file. Ids are made here and begin with the time, so their order is that of the uploads. Names that
clients give never become paths.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from dsearch.errors import Conflict, CorruptData, InvalidRequest, NotFound, amount
from dsearch.index.durable import file_digest, sync_file, sync_folder
from dsearch.service.wire.whole import whole_or_gone

FOLDER = ".uploads"
MAX_FILES = 10_000
MAX_BYTES = 4 * 1024**3
MAX_NAME_CHARACTERS = 255
_ID = re.compile(r"file-[0-9a-f]{24}")
_AT_A_TIME = 1 << 20


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file that was uploaded.

    Attributes:
        id: made here.
        filename: name that the client gave, without folders.
        bytes: size.
        created_at: seconds since 1970.
        purpose: as the client said.
        digest: SHA-256 of the bytes, in hex.
    """

    id: str
    filename: str
    bytes: int
    created_at: int
    purpose: str
    digest: str


class Uploads:
    """The uploaded files of a home; for many threads.

    Args:
        folder: the home's folder for them; made with the first file.
        readonly: True to refuse changes.
        max_files: most files.
        max_bytes: most bytes of all files together.
    """

    def __init__(
        self,
        folder: Path,
        *,
        readonly: bool = False,
        max_files: int = MAX_FILES,
        max_bytes: int = MAX_BYTES,
    ):
        self.folder = folder
        self._readonly = readonly
        self._max_files, self._max_bytes = max_files, max_bytes
        self._lock = threading.Lock()
        self._loaded: dict[str, UploadedFile] | None = None

    def add(self, source: BinaryIO, filename: str, purpose: str) -> UploadedFile:
        """Keep a file; it is on the disk on return.

        Raises:
            Conflict: the home is readonly, or there is no room.
            InvalidRequest: a name that is none.
            InsufficientStorage, Unavailable: the disk is full, or cannot be written.
        """
        name = _plain_name(filename)
        with self._lock:
            self._require_writable()
            files = self._files()
            self._require_room(source, files)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            id = _new_id(max(files, default=""))
            place = self.folder / f"{id}.bin"
            part = self.folder / f"{id}.json.part"
            with whole_or_gone(part, place, problem="the file could not be kept"):
                digest = _copy(source, place)
                upload = UploadedFile(id, name, place.stat().st_size, int(time.time()), purpose, digest)
                part.write_text(json.dumps(asdict(upload)))
                sync_file(place)
                sync_file(part)
            part.rename(self.folder / f"{id}.json")
            sync_folder(self.folder)
            files[id] = upload
        return upload

    def get(self, id: str) -> UploadedFile:
        """The file of this id; raises NotFound."""
        with self._lock:
            upload = self._files().get(id)
        if upload is None:
            raise NotFound(f"no file {id[:80]!r}; upload one with POST /v1/files, GET /v1/files lists them")
        return upload

    def verify(self, id: str) -> Path:
        """The place of a file's bytes, which are what was uploaded.

        Raises:
            NotFound: no such file.
            CorruptData: they are not.
        """
        upload = self.get(id)
        place = self.folder / f"{upload.id}.bin"
        if not place.is_file() or file_digest(place)[1] != upload.digest:
            raise CorruptData(f"file {id} is not what was uploaded; delete it and upload it again")
        return place

    def list(self, after: str = "", limit: int = MAX_FILES, purpose: str | None = None) -> list[UploadedFile]:
        """Files in the order of their uploads, after the one of this id."""
        with self._lock:
            files = self._files()
            ids = sorted(files)
            matching = (files[id] for id in ids[bisect_right(ids, after) :])
            wanted = [upload for upload in matching if purpose is None or upload.purpose == purpose]
        return wanted[:limit]

    def delete(self, id: str) -> None:
        """Delete a file.

        Raises:
            NotFound: no such file.
            Conflict: the home is readonly.
        """
        self.get(id)
        with self._lock:
            self._require_writable()
            for suffix in (".json", ".bin"):  # without a record there is no file
                (self.folder / f"{id}{suffix}").unlink(missing_ok=True)
            sync_folder(self.folder)
            self._files().pop(id, None)

    def _require_writable(self) -> None:
        if self._readonly:
            raise Conflict("the service is readonly; upload to the one that writes to this home")

    def _require_room(self, source: BinaryIO, files: dict[str, UploadedFile]) -> None:
        size = source.seek(0, 2)
        source.seek(0)
        total = sum(upload.bytes for upload in files.values())
        if len(files) >= self._max_files or total + size > self._max_bytes:
            raise Conflict(
                f"{amount(len(files), 'file')} of {total} bytes are kept, and this one has {size}; at most "
                f"{self._max_files} files of {self._max_bytes} bytes: delete some with DELETE /v1/files/ID. "
                "Documents made of a file that is deleted go with it"
            )

    def _files(self) -> dict[str, UploadedFile]:
        """Records by id, read once; what an interrupted upload left is removed. Under the lock."""
        if self._loaded is None:
            records = sorted(path for path in self.folder.glob("*.json") if _ID.fullmatch(path.stem))
            loaded = {path.stem: _read(path) for path in records}  # all of them or none
            if not self._readonly:
                for path in [*self.folder.glob("*.part"), *self.folder.glob("*.bin")]:
                    if path.suffix == ".part" or path.stem not in loaded:
                        path.unlink(missing_ok=True)
            self._loaded = loaded
        return self._loaded


def _new_id(last: str) -> str:
    """An id after all that there are, whatever the clock does."""
    now = max(time.time_ns() // 1_000_000, int(last[5:17], 16) + 1 if last else 0)
    return f"file-{now:012x}{secrets.token_hex(6)}"


def _plain_name(filename: str) -> str:
    name = filename.replace("\\", "/").rpartition("/")[2].strip()
    if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidRequest(
            f"filename={filename[:80]!r}; use 1 to {MAX_NAME_CHARACTERS} printable characters, with the "
            "suffix of its type, such as notes.md"
        )
    return name


def _copy(source: BinaryIO, place: Path) -> str:
    """Copy a file and return its digest."""
    digest = hashlib.sha256()
    with place.open("xb") as target:
        while some := source.read(_AT_A_TIME):
            digest.update(some)
            target.write(some)
    return digest.hexdigest()


def _read(path: Path) -> UploadedFile:
    try:
        upload = UploadedFile(**json.loads(path.read_bytes()))
        intact = upload.id == path.stem
    except (OSError, ValueError, TypeError):
        intact = False
    if not intact:
        raise CorruptData(
            f"the record of an upload, {path.name}, is damaged; delete it from the folder {FOLDER}"
        )
    return upload
