"""kill -9 on entry to system calls that change files, through the engine: tests run a few hundred,
scripts/soak_store.py thousands.

A process is forked from one that has imported the engine (engine_zygote.py), strace attaches to it and kills
it at the chosen call. Then another engine opens what is left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import engine_scenarios as scenarios
from engine_scenarios import NAME, SCENARIOS, Step

from dsearch.engine import SearchEngine

CALLS = (
    "write,pwrite64,pwritev,fsync,fdatasync,ftruncate,fallocate,unlink,unlinkat,rename,renameat,mkdir,rmdir,"
    "link,copy_file_range,sendfile"
)
Point = tuple[str, int]  # the call, and how many of its name have been before in this process, and one


class Killed:
    """Processes that die where they are told to."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("engine_zygote.py")
        self._zygote = subprocess.Popen(
            [sys.executable, "-B", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._zygote.stdout
        assert self._zygote.stdout.readline() == "ready\n"

    def __enter__(self) -> Killed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._zygote.stdin
        self._zygote.stdin.close()
        self._zygote.wait()

    def run(
        self,
        home: Path,
        scenario: str,
        seed: int,
        *,
        part: str = "of",
        broken: str = "",
        strace: Sequence[str] | None = None,
    ) -> tuple[int, list[str]]:
        """(exit status, the lines that it printed whole) of a scenario, watched by strace if asked."""
        out = home.with_name(f"{home.name}.out")
        out.unlink(missing_ok=True)
        asked = {"home": str(home), "scenario": scenario, "seed": seed, "part": part}
        pid = int(self._say(json.dumps({**asked, "out": str(out), "broken": broken})))
        stopped(pid)
        tracer = None
        if strace is not None:
            tracer = subprocess.Popen(
                ["strace", "-f", "-qq", *strace, "-p", str(pid)], stderr=subprocess.PIPE
            )
            while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
                assert tracer.poll() is None, tracer.communicate()[1].decode()
                time.sleep(0.001)
        os.kill(pid, signal.SIGCONT)
        status = int(self._say(""))
        if tracer is not None:
            tracer.communicate()
        printed = out.read_bytes() if out.exists() else b""
        lines = printed.splitlines(keepends=True)
        return status, [line.decode().strip() for line in lines if line.endswith(b"\n")]

    def _say(self, line: str) -> str:
        assert self._zygote.stdin
        assert self._zygote.stdout
        self._zygote.stdin.write(line + "\n")
        self._zygote.stdin.flush()
        return self._zygote.stdout.readline()


def stopped(pid: int) -> None:
    while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.001)


@dataclass
class Expected:
    """What must be found: the word of each document, the live model, and which ids were deleted."""

    there: bool = False
    words: dict[str, str] = field(default_factory=dict)
    model: str = "v0"
    generations: int = 0

    def after(self, step: Step) -> Expected:
        words = dict(self.words)
        if step.kind in ("upsert", "ingest"):
            words |= dict.fromkeys(step.ids, step.word)
        elif step.kind in ("delete", "delete matching"):
            words = {id: word for id, word in words.items() if id not in step.ids}
        model = step.word if step.kind == "promote" else self.model
        return replace(self, there=True, words=words, model=model)


def kills(
    killed: Killed,
    scratch: Path,
    trials: int,
    *,
    seed: int = 1,
    only: Sequence[str] = SCENARIOS,
    broken: str = "",
) -> dict[str, int]:
    """`trials` kills in all, spread evenly over the calls of the scenarios; what was seen.

    Raises AssertionError when an acknowledged write is lost, a deleted document is back, half of something
    shows, or what is left cannot be opened, verified, searched and written.
    """
    tally: Counter[str] = Counter()
    points: list[tuple[str, Point]] = []
    for scenario in only:
        base = scratch / f"{scenario} {seed}"
        base.mkdir()
        if scenario != "create":
            status, _ = killed.run(base, scenario, seed, part="before")
            assert status == 0
        points += [(scenario, point) for point in points_of(killed, base, scenario, seed, broken)]
    tally["calls"] = len(points)
    step = max(1.0, len(points) / trials)
    for number in sorted({int(place * step) for place in range(trials) if place * step < len(points)}):
        scenario, (call, count) = points[number]
        home = scratch / "home"
        shutil.copytree(scratch / f"{scenario} {seed}", home)
        inject = ["-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={count}"]
        status, log = killed.run(home, scenario, seed, broken=broken, strace=inject)
        where = f"{scenario}, seed {seed}, killed at {call} {count}, which had said {log}"
        assert status in (0, -signal.SIGKILL), where
        tally["kills"] += status != 0
        tally[f"kills in {scenario}"] += status != 0
        try:
            check(home, scenario, seed, log)
        except Exception as error:
            raise AssertionError(f"{where}: {error!r}") from error
        shutil.rmtree(home)
    return dict(tally)


def points_of(killed: Killed, base: Path, scenario: str, seed: int, broken: str) -> list[Point]:
    """The calls of a scenario by which it changes files, in their order."""
    home, trace = base.with_name("whole"), base.with_name("trace")
    shutil.copytree(base, home)
    watched = ["-o", str(trace), "-e", f"trace={CALLS}"]
    status, log = killed.run(home, scenario, seed, broken=broken, strace=watched)
    assert status == 0, log
    seen: Counter[str] = Counter()
    points: list[Point] = []
    lines = re.findall(r"^(\d+) +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE)
    for process, call in lines:
        if process == lines[0][0]:  # another thread counts its own
            seen[call] += 1
            points.append((call, seen[call]))
    shutil.rmtree(home)
    shutil.rmtree(scenarios.backup_of(home), ignore_errors=True)
    return points


def check(home: Path, scenario: str, seed: int, log: Sequence[str]) -> None:
    """Hold what is left of a home against what the process that died had acknowledged."""
    expected = Expected()
    for step in scenarios.before(scenario, seed):
        expected = expected.after(step)
    steps = scenarios.of(scenario, seed)
    acknowledged = [int(line.split()[1]) for line in log if line.startswith("ack")]
    tried = [int(line.split()[1]) for line in log if line.startswith("try")]
    done = len(acknowledged)
    for step in steps[:done]:
        expected = expected.after(step)
    allowed = [expected]
    if len(tried) > done:
        allowed.append(expected.after(steps[done]))
    with SearchEngine(home, encoder=scenarios.encoder) as engine:
        if NAME not in engine.names():
            assert not all(state.there for state in allowed)
            engine.create(NAME)
            return
        assert any(state.there for state in allowed)
        collection = engine.collection(NAME)
        report = engine.verify(NAME)
        assert report.ok, report.damage
        store = collection.store
        listed = store.list(limit=1000)
        words = {document.id: document.text.split(" filler")[0].split()[-1] for document in listed}
        if allowed[-1] is not expected and steps[done].kind == "ingest":
            # Batch by batch: each document is as it was or as it will be.
            old, new = expected.words, allowed[-1].words
            assert set(old) <= set(words) <= set(new)
            assert all(word in (old.get(id), new[id]) for id, word in words.items())
        else:
            assert words in [state.words for state in allowed], (words, [state.words for state in allowed])
        assert collection.live_model in [state.model for state in allowed]
        waiting = set(store.ids(store.pending().rows))
        for mode in ("dense", "keyword"):
            found = collection.search("every", mode=mode, limit=1000, coverage=False).hits
            assert {hit.id: hit.text for hit in found} == {
                document.id: document.text for document in listed if document.id not in waiting
            }
        names = {path.name for path in (store.path / "generations").iterdir()}
        assert names == {f"{one.number:06d}" for one in store.generations()}  # nothing half built is left
        collection.upsert(scenarios.documents(["after"], "after"))
        collection.delete([listed[0].id] if listed else [])
        assert collection.search("after", mode="keyword", limit=1).hits[0].id == "after"
    copy = scenarios.backup_of(home)
    if any(step.kind == "backup" for step in steps[:done]):
        assert copy.exists()
    if copy.exists():  # whole, or not there
        with SearchEngine(home.with_name("restored"), encoder=scenarios.encoder) as engine:
            engine.restore(copy)
            assert engine.verify(NAME).ok
        shutil.rmtree(home.with_name("restored"))
        shutil.rmtree(copy)
