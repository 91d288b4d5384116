#!/usr/bin/env python3
"""The store's crash, fault and bit-flip trials at nightly size, in one table; fails when one promise broke.

    python scripts/trials/soak_store.py                 hours
    python scripts/trials/soak_store.py --scale 0.01    minutes
    python scripts/trials/soak_store.py --only flips

| trial | does |
|---|---|
| random kills | SIGKILL at random moments of one collection's life: upserts, deletions, purges, backups, … |
| kills at calls | death on entry to system calls that change files, of several writers, evenly spread |
| kills while creating | the same for `Store.create` |
| kills through the engine | the same for eight scenarios of a collection (engine_scenarios.py) |
| faults | EIO and ENOSPC from writes and syncs, and short writes |
| damage | flipped bits and cut ends in every kind of file of a home, closed or killed |
| flips | one flipped bit in the database of a closed collection |
| flips in the log | one flipped bit in the write-ahead log that a kill left |
| kills of feedback | death on entry to system calls that change files, while clicks are written and cleared |
| faults of feedback | EIO, ENOSPC and short writes, while clicks are written and cleared |
| flips in the log of feedback | one flipped bit in the log of feedback.db that a kill left |
| power cuts | what any subset of the unsynced writes and names leaves of a life with two generations |

The trials are those of store_trials.py, feedback_trials.py, power_loss.py and engine_trials.py below tests/,
which the test suite runs in small numbers. Calls are chosen, and recorded, by strace.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dsearch.store import Store
from dsearch.types import Document

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.forked import in_memory
from support.store import feedback_trials, power_loss
from support.store import store_trials as trials

ROWS = 40


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the nightly numbers of trials")
    parser.add_argument("--only", nargs="+", choices=list(TRIALS), help="default: all")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()

    results = []
    for name in options.only or TRIALS:
        run, nightly, at_once = TRIALS[name]
        count = max(8, round(nightly * options.scale))
        result = {"name": name, "seen": {}, "broken": None, "took_s": 0.0}
        results.append(result)
        total: Counter[str] = Counter()
        done, seed, started = 0, 0, time.monotonic()
        while done < count and result["broken"] is None:
            part, seed = min(at_once, count - done), seed + 1
            scratch = Path(tempfile.mkdtemp(dir=in_memory()))
            try:
                total.update(run(scratch, part, seed))
            except AssertionError as error:
                result["broken"] = str(error) or "an assertion failed"
            finally:
                shutil.rmtree(scratch)
            done += part
            result |= {"seen": dict(total), "took_s": round(time.monotonic() - started, 1)}
            print(f"{name}: {done:,} of {count:,}", file=sys.stderr, flush=True)
            if options.json:  # after each part, so that an interrupted night leaves figures
                options.json.write_text(json.dumps(results, indent=2) + "\n")
    print("| trial | promise | seen | minutes |\n|---|---|---|---:|")
    for line in results:
        seen = ", ".join(f"{count:,} {what}" for what, count in line["seen"].items())
        kept = "kept" if line["broken"] is None else f"BROKEN: {line['broken'][:200]}"
        print(f"| {line['name']} | {kept} | {seen} | {line['took_s'] / 60:.1f} |")
    return 0 if all(line["broken"] is None for line in results) else 1


def random_kills(scratch: Path, count: int, seed: int) -> dict[str, int]:
    with trials.forks() as forks:
        return trials.random_kills(forks, scratch / "papers", count, seed=seed)


def kills_at_calls(scratch: Path, count: int, seed: int) -> dict[str, int]:
    """Of another writer's life for each seed: other documents, other pages, other numbers of calls."""
    with trials.forks() as forks:
        return trials.kills_at_calls(forks, scratch / "papers", scratch, count, seed=seed)


def kills_while_creating(scratch: Path, count: int, seed: int) -> dict[str, int]:
    with trials.forks() as forks:
        return trials.kills_while_creating(forks, scratch, count)


def kills_through_the_engine(scratch: Path, count: int, seed: int) -> dict[str, int]:
    from support.engine import engine_trials

    with engine_trials.forks() as forks:
        seen = engine_trials.kills(forks, scratch, count, seed=seed)
    return {name: seen[name] for name in ("kills", "calls")}


def faults(scratch: Path, count: int, seed: int) -> dict[str, int]:
    with trials.forks() as forks:
        return trials.faults(forks, scratch / "papers", scratch, count)


def flips(scratch: Path, count: int, seed: int) -> dict[str, int]:
    folder = scratch / "papers"
    with Store.create(folder, name="papers", encoder={}, dimension=8) as store:
        documents = [Document(f"d{n}", f"text number {n} " * 40, metadata={"n": n}) for n in range(ROWS)]
        store.upsert(documents, np.random.default_rng(0).normal(size=(ROWS, 8)))
        store.upsert([Document("d0", "another text")])
        store.delete(["d1", "d2"])
        store.add_generation(1, manifest_digest="ab" * 32, rows=ROWS, snapshot=1)
        store.publish_generation(1)
        store.add_model("v1", "v0", {"gate": 0.5})
        store.promote("v1")
    return trials.flips(folder, scratch, count, rows=ROWS, seed=seed)


def flips_in_the_log(scratch: Path, count: int, seed: int) -> dict[str, int]:
    with Store.create(scratch / "papers", name="papers", encoder={}, dimension=8) as store:
        for n in range(4):
            store.upsert([Document(f"d{n}", f"text {n}")])
        killed = Path(shutil.copytree(scratch / "papers", scratch / "killed"))
    return trials.flips_in_the_log(killed, scratch, count, seed=seed)


def kills_of_feedback(scratch: Path, count: int, seed: int) -> dict[str, int]:
    """Of a new file, and of one that an older release left."""
    with feedback_trials.forks() as forks:
        return feedback_trials.kills(forks, scratch, count, old=seed % 2 == 0)


def faults_of_feedback(scratch: Path, count: int, seed: int) -> dict[str, int]:
    with feedback_trials.forks() as forks:
        return feedback_trials.faults(forks, scratch, count)


def flips_in_the_log_of_feedback(scratch: Path, count: int, seed: int) -> dict[str, int]:
    return feedback_trials.flips_in_the_log(scratch, count, seed=seed)


def damages(scratch: Path, count: int, seed: int) -> dict[str, int]:
    from support.engine import damage_trials

    seen = damage_trials.damages(scratch, count, seed=seed)
    del seen["kinds of files"]  # the same in each part, so that no sum of them says anything
    return seen


def power_cuts(scratch: Path, count: int, seed: int) -> dict[str, int]:
    home = scratch / "recorded"
    home.mkdir()
    calls = power_loss.record(home, scratch / "trace")
    checked = 0
    while checked < count:  # another seed draws other subsets; the systematic ones come again
        for cut in power_loss.states(calls, home, draws=20, seed=seed):
            power_loss.check(cut, scratch / "after")
            checked += 1
            if checked == count:
                break
        seed += 1
    return {"states": checked}


# What runs them, how many a night takes, and how many have one seed and one folder.
TRIALS: dict[str, tuple[Callable[[Path, int, int], dict[str, int]], int, int]] = {
    "random kills": (random_kills, 5_000, 500),
    "kills at calls": (kills_at_calls, 2_000, 250),
    "kills while creating": (kills_while_creating, 80, 80),
    "kills through the engine": (kills_through_the_engine, 2_000, 1_000),
    "faults": (faults, 500, 500),
    "damage": (damages, 20_000, 1_000),
    "flips": (flips, 20_000, 5_000),
    "flips in the log": (flips_in_the_log, 2_000, 1_000),
    "kills of feedback": (kills_of_feedback, 400, 200),
    "faults of feedback": (faults_of_feedback, 500, 500),
    "flips in the log of feedback": (flips_in_the_log_of_feedback, 2_000, 1_000),
    "power cuts": (power_cuts, 20_000, 20_000),
}


if __name__ == "__main__":
    sys.exit(main())
