"""Releases of a collection: what shards hold of it, their retention, and where deleted documents are left.

    releases/000012-5-<digest>/     a generation in five shards (cluster/release.py)
             sent/<name>/place      the URI of a copy for other machines
                         rows.npy   rows of its documents

The release published last stays, because shards may be started from it again. Older ones are kept like
generations (leases.py): the newest few, and those that a shard reads.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from dsearch.engine.indexing.leases import KEEP, alone_with
from dsearch.errors import Command, DsearchError
from dsearch.index.durable import replace_file, sync_file
from dsearch.store import Store

FOLDER, RELEASE_NAME, ROWS_NAME = "releases", "release.json", "rows.npy"
_SENT, _PLACE = "sent", "place"


class SentRelease(NamedTuple):
    """A copy of a release for other machines.

    Attributes:
        uri: its location.
        folder: record of it in the home.
    """

    uri: str
    folder: Path


def releases_of(store: Store) -> list[Path]:
    """Return the folders of releases in the home, the one published last first."""
    folders = [folder for folder in _children(store.path / FOLDER) if _is_release(folder)]
    return sorted(folders, key=lambda folder: (_published(folder), folder.name), reverse=True)


def mark_published(release: Path) -> None:
    """Make a release the one that was published last."""
    now = time.time_ns()  # finer than the clock of the file system
    os.utime(release / RELEASE_NAME, ns=(now, now))


def mark_sent(store: Store, release: Path, uri: str) -> None:
    """Record a copy of a release before it is written, so that its documents are never forgotten."""
    record = store.path / FOLDER / _SENT / release.name
    record.mkdir(parents=True, exist_ok=True)
    rows = [rows for rows in _rows(release) if rows is not None]
    if len(rows) == len(_rows(release)):
        np.save(record / ROWS_NAME, np.concatenate(rows))
        sync_file(record / ROWS_NAME)
    replace_file(record / _PLACE, uri.encode())


def sent_releases(store: Store) -> list[SentRelease]:
    """Return the recorded copies of releases."""
    folders = sorted(_children(store.path / FOLDER / _SENT))
    return [
        SentRelease((folder / _PLACE).read_text(encoding="utf-8"), folder)
        for folder in folders
        if (folder / _PLACE).is_file()
    ]


def carry_sent(store: Store, folder: Path) -> None:
    """Let a migrated collection in `folder`, whose rows are others, know the copies too: of any documents."""
    for uri, record in sent_releases(store):
        (folder / FOLDER / _SENT / record.name).mkdir(parents=True, exist_ok=True)
        replace_file(folder / FOLDER / _SENT / record.name / _PLACE, uri.encode())


def retire_releases(store: Store, keep: int = KEEP) -> list[str]:
    """Remove releases but the `keep` newest and those that a process reads, and what broken splits left.

    Returns:
        names of the removed folders.
    """
    broken = [folder for folder in _children(store.path / FOLDER) if folder.name.startswith(".")]
    removed: list[str] = []
    for folder in (*releases_of(store)[max(1, keep) :], *broken):
        with suppress(FileNotFoundError), _alone_with_release(folder) as alone:
            if alone:
                shutil.rmtree(folder)
                removed.append(folder.name)
    return removed


def tidy_releases(store: Store) -> None:
    """Remove old releases; errors of the disk are ignored, the next call tries again."""
    with suppress(DsearchError, OSError):
        retire_releases(store)


def releases_holding_deleted(store: Store) -> list[str]:
    """Return releases, by name, and copies, by URI, that contain rows which are not live."""
    if not (store.path / FOLDER).is_dir():
        return []
    present = store.rows()
    holding = [
        folder.name
        for folder in releases_of(store)
        if any(rows is None or len(np.setdiff1d(rows, present)) for rows in _rows(folder))
    ]
    for uri, folder in sent_releases(store):
        rows = _load_rows(folder)
        if rows is None or len(np.setdiff1d(rows, present)):
            holding.append(uri)
    return holding


def deletion_note(store: Store) -> str | None:
    """Say that shards keep what was deleted, and until when; None for a collection without a release."""
    releases = releases_of(store)
    if not releases and not sent_releases(store):
        return None
    name = f" {releases[0].name}" if releases else ""
    return (
        f"shards of a cluster answer with release{name} until the next publishing: "
        f"{Command('refresh', ('-c', store.name))}, then {publishing(store.name, releases)}"
    )


def holding_note(store: Store, holding: Sequence[str]) -> str | None:
    """Say what to do about `releases_holding_deleted`; None where there is nothing to do."""
    if not holding:
        return None
    releases, copies = releases_of(store), {sent.uri: sent.folder for sent in sent_releases(store)}
    start = publishing(store.name, releases)
    if sent := [uri for uri in holding if uri in copies]:
        records = ", ".join(f"{FOLDER}/{_SENT}/{copies[uri].name}" for uri in sent)
        return (
            f"copies of a release at {', '.join(sent)} still have deleted documents; publish again, which "
            f"removes them, and run this again: {start} --at PLACE. Where you have deleted them yourself, "
            f"delete their record {records} in the collection's folder"
        )
    if releases and releases[0].name in holding:
        return (
            f"release {releases[0].name} still has deleted documents, and shards of a cluster answer with "
            f"them; publish what is there now, and run this again: {start}. Where no cluster answers any "
            f"more, delete {FOLDER}/{releases[0].name} in the collection's folder"
        )
    return (
        f"release {', '.join(holding)}, which is replaced, still has deleted documents and is read by a "
        "shard; run this again in a minute, or end that"
    )


def publishing(collection: str, releases: Sequence[Path]) -> Command:
    """Command that publishes a collection again, in as many shards as its last release."""
    shards = len(_rows(releases[0])) if releases else 1
    return Command("cluster start", ("-c", collection, *(("--shards", str(shards)) if shards > 1 else ())))


@contextmanager
def _alone_with_release(folder: Path) -> Generator[bool]:
    """As `alone_with`, of a release and all its shards: a shard leases its own folder."""
    with ExitStack() as stack:
        held = (folder, *(child for child in _children(folder) if child.is_dir()))
        yield all(stack.enter_context(alone_with(one)) for one in held)


def _rows(release: Path) -> list[Int64[np.ndarray, " documents"] | None]:
    """Rows of the documents of each shard; None in a release of before they were recorded."""
    return [_load_rows(shard) for shard in sorted(_children(release)) if shard.is_dir()]


def _load_rows(folder: Path) -> Int64[np.ndarray, " documents"] | None:
    file = folder / ROWS_NAME
    return np.load(file, allow_pickle=False) if file.is_file() else None


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_release(folder: Path) -> bool:
    return folder.is_dir() and folder.name != _SENT and not folder.name.startswith(".")


def _published(folder: Path) -> int:
    """Time of the last publishing; 0 of a release whose removal was interrupted."""
    try:
        return (folder / RELEASE_NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
