"""A build that is killed leaves no generation or a whole one, never half of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsearch.index import Generation, remove_unfinished

# Dies with SIGKILL at one call that writes, syncs or renames, in a child per call: call 0, 1, 2, …
# Prints the number of the call at which a child came through.
CHILD = """
import os, signal, sys
from pathlib import Path
import numpy as np
from dsearch.index import Generation

def build(folder, fatal):
    calls = 0
    def counted(function):
        def wrapper(*arguments, **options):
            nonlocal calls
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return function(*arguments, **options)
        return wrapper
    os.fsync, os.rename, os.mkdir = counted(os.fsync), counted(os.rename), counted(os.mkdir)
    np.save = counted(np.save)
    Path.write_bytes, Path.write_text = counted(Path.write_bytes), counted(Path.write_text)
    Generation.build(folder, number=1, sequence=1, rows=np.arange(5), embeddings=np.eye(5, dtype=np.float32),
                     texts=["a text"] * 5, encoder={"name": "x"})

home, fatal = Path(sys.argv[1]), 0
while True:
    child = os.fork()  # before FAISS has run a thread in this process
    if child == 0:
        build(home / f"{fatal}" / "000001", fatal)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    fatal += 1
print(fatal)
"""


@pytest.mark.crash
def test_killed_at_every_step(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    steps = int(run.stdout)
    assert steps >= 20
    absent = left = 0
    for step in range(steps):
        generations = tmp_path / str(step)
        folder = generations / "000001"
        if folder.exists():
            assert len(Generation.open(folder)) == 5
        else:
            absent += 1
            left += len(remove_unfinished(generations))
            Generation.build(
                folder,
                number=1,
                sequence=1,
                rows=np.arange(5),
                embeddings=np.eye(5, dtype=np.float32),
                texts=["a text"] * 5,
                encoder={"name": "x"},
            )
            assert [path.name for path in generations.iterdir()] == ["000001"]
    # All but the first mkdirs leave something behind, and only kills after the rename, at the two folders'
    # syncs, leave a generation.
    assert absent == steps - 2
    assert left >= absent - 3
