"""Transfer of releases and shards as folders, from disk, S3 or GCS, by pyarrow's file systems.

Every file is verified against its manifest before use, so the source need not be trusted. A folder that
exists already is reused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsearch.cluster.release import Release, ShardManifest
from dsearch.engine.indexing.leases import Lease, alone_with
from dsearch.engine.indexing.releases import RELEASE_NAME
from dsearch.errors import CorruptData, DsearchError, InvalidRequest, MissingExtra, Unavailable


def read_release(uri: str) -> Release:
    """Read the release at `uri`, a path or a URI such as s3://bucket/folder.

    Raises:
        CorruptData: missing, or changed since it was written.
        MissingExtra, InvalidRequest (scheme unknown to pyarrow), Unavailable (nothing answers there).
    """
    local = _local(uri)
    if local is not None:
        return Release.read(local)
    files, folder = _file_system(uri)
    here = Path(_scratch())
    try:
        _copy_file(files, f"{folder}/{RELEASE_NAME}", here / RELEASE_NAME)
        return Release.read(here)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def fetch_shard(uri: str, name: str, digest: str, cache: Path) -> Path:
    """Return the folder of a shard on this machine: its own, or a copy in `cache`.

    Args:
        uri: location of the release.
        name: name of the shard.
        digest: digest of its manifest.
        cache: folder of copies, by digest.

    Raises:
        CorruptData: it is missing, or another shard.
        MissingExtra, InvalidRequest, Unavailable.
    """
    local = _local(uri)
    if local is not None and (local / name).is_dir():
        return local / name
    shard = cache / digest
    if shard.is_dir():
        return shard
    files, folder = _file_system(uri)
    cache.mkdir(parents=True, exist_ok=True)
    arriving = cache / f".{digest}.{os.getpid()}-{uuid4().hex[:8]}"
    arriving.mkdir()
    lease = Lease(arriving)  # what a broken transfer leaves is removed
    try:
        _copy_file(files, f"{folder}/{name}/shard.json", arriving / "shard.json")
        for file in ShardManifest.read(arriving, digest).files:
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise CorruptData(f"{uri}/{name}: names a file outside itself ({file[:80]!r})")
            (arriving / file).parent.mkdir(parents=True, exist_ok=True)
            _copy_file(files, f"{folder}/{name}/{file}", arriving / file)
        try:
            arriving.rename(shard)
        except OSError:
            if not shard.is_dir():  # another process on this machine was faster
                raise
        return shard
    finally:
        lease.release()
        shutil.rmtree(arriving, ignore_errors=True)


def send(folder: Path, uri: str) -> None:
    """Copy a release to `uri`; release.json is written last, so an incomplete copy is not valid.

    Raises:
        MissingExtra, InvalidRequest, CorruptData (not a release).
        Unavailable: `uri` cannot be written.
    """
    Release.read(folder)
    files, target = _file_system(uri)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RELEASE_NAME)
    try:
        for path in [*paths, folder / RELEASE_NAME]:
            destination = f"{target}/{path.relative_to(folder).as_posix()}"
            files.create_dir(destination.rpartition("/")[0], recursive=True)
            with path.open("rb") as source, files.open_output_stream(destination) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except (OSError, ValueError) as error:  # GCS calls a missing bucket an invalid argument
        raise Unavailable(
            f"cannot write to {target} ({error}); is it there, and may we write to it?"
        ) from error


def remove(uri: str) -> None:
    """Remove the copy of a release; one that is gone already is no error.

    Raises:
        MissingExtra, InvalidRequest.
        Unavailable: `uri` cannot be changed.
    """
    files, target = _file_system(uri)
    try:
        with suppress(FileNotFoundError):
            files.delete_dir(target)
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot remove {target} ({error}); is it there, and may we change it?") from error


def tidy_cache(cache: Path, collection: str, keep: Sequence[str]) -> None:
    """Remove copies of a collection's shards that no process reads, and what broken transfers left.

    Args:
        cache: folder of copies, by digest.
        collection: name of the collection.
        keep: digests of shards to keep.
    """
    for copy in cache.iterdir() if cache.is_dir() else ():
        with suppress(OSError, DsearchError):
            if copy.name not in keep and ShardManifest.read(copy).collection == collection:
                with alone_with(copy) as alone:
                    if alone:
                        shutil.rmtree(copy)


def below(uri: str, *names: str) -> str:
    """Return the URI of a subfolder of `uri`; file system options after a ? stay at the end."""
    place, mark, options = uri.partition("?")
    return "/".join([place.rstrip("/"), *names]) + mark + options


def _local(uri: str) -> Path | None:
    if "://" not in uri:
        return Path(uri)
    return Path(uri.removeprefix("file://")) if uri.startswith("file://") else None


def _file_system(uri: str) -> tuple[Any, str]:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise MissingExtra(
            f"copying shards needs pyarrow, which is not installed ({error}); run pip install 'dsearch[ray]'"
        ) from error
    try:
        files, path = fs.FileSystem.from_uri(uri if "://" in uri else Path(uri).resolve().as_uri())
    except (ValueError, OSError, NotImplementedError) as error:
        raise InvalidRequest(
            f"{uri}: {error}; use a folder, s3://bucket/folder or gs://bucket/folder"
        ) from error
    return files, path.rstrip("/")


def _copy_file(files: Any, source: str, target: Path) -> None:
    try:
        with files.open_input_stream(source) as stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
    except FileNotFoundError as error:
        raise CorruptData(f"{source}: is not there ({error}); send the release again") from error
    except OSError as error:
        raise Unavailable(f"cannot copy {source} to this machine ({error}); try again") from error


def _scratch() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="dsearch-")
