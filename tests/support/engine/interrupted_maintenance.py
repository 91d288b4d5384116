"""Says what it does, step by step, so that a test can kill it anywhere: a backup, or a migration."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.engine.indexing.ingest import OnProgress
from dsearch.engine.maintenance import backup as backups
from dsearch.engine.maintenance import migrate
from dsearch.types import Document, Progress

_said: list[str] = []
_waits_at = ""


def say(*words: object) -> None:
    """A line; at the one that the test kills at it waits for that."""
    line = " ".join(map(str, words))
    _said.append(line)
    print(line, flush=True)
    opening = line == "before clear_superseded" and "after _publish" not in _said
    if line == _waits_at and not opening:
        print("waits at", line, flush=True)
        time.sleep(120)


def documents(count: int) -> list[Document]:
    return [Document(id=f"{i}", text=f"text number{i} of {i % 7}") for i in range(count)]


def announced(module: object, name: str) -> None:
    """Let a function say its name before it runs and after."""
    original = getattr(module, name)

    def loud(*given: object, **named: object) -> object:
        say(f"before {name}")
        result = original(*given, **named)
        say(f"after {name}")
        return result

    setattr(module, name, loud)


def main() -> None:
    """Do argv[1]: home, number of documents, the line at which it waits, the backup's folder."""
    global _waits_at
    task, home, count, _waits_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    say("started")
    if task == "backup":
        for name in ("damaged_model_files", "_copy_generation", "copy_feedback"):
            announced(backups, name)
        with SearchEngine(home, encoder=HashingEncoder) as engine:
            say(engine.backup("papers", Path(sys.argv[5])).documents)
        return
    for name in ("_copy_all", "_copy_changes", "build_generation", "_publish", "clear_superseded"):
        announced(migrate, name)
    import dsearch.engine.engine as engine_module

    announced(engine_module, "clear_superseded")
    new = HashingEncoder(48, "newer")

    def on_progress(step: Progress) -> None:
        say(step.stage, step.done)

    reporting: OnProgress = on_progress
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        if "papers" not in engine.names():
            engine.create("papers").ingest(documents(count))
        done = engine.migrate("papers", new, on_progress=reporting)
        say("encoded", done.encoded)
