"""A process that loses SQLite's locks, by a copy of documents.db made in it, loses no acknowledged write."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from support.warm.processes import run_warm

from dsearch.store import Store

FILES = ("documents.db", "documents.db-wal", "documents.db-shm")
WRITER = """
import os, shutil, signal, sys
from pathlib import Path
from dsearch.processes import run_spawned
from dsearch.store import Store
from dsearch.types import Document
from support.store.readers import count

path = Path(sys.argv[1])
store = Store.open(path)
store.upsert([Document("before", "one")])
for name in sys.argv[2:]:
    shutil.copyfile(path / name, path.parent / name)  # closes a file of SQLite's: its locks are gone
print(run_spawned(count, path))
store.upsert([Document("after", "two")])
print(run_spawned(count, path), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("copied", [FILES[:1], FILES])
def test_a_reader_elsewhere_leaves_the_log(folder: Path, copied: tuple[str, ...]) -> None:
    """A last connection deletes the log as it is closed, and without locks any seems the last."""
    Store.create(folder, name="papers", encoder={}, dimension=8).close()
    done = run_warm([sys.executable, "-c", WRITER, str(folder), *copied])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split() == ["1", "2"], done.stderr
    with Store.open(folder) as store:
        assert [one.id for one in store.list()] == ["after", "before"]
