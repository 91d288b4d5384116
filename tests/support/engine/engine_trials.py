"""kill -9 on entry to system calls that change files, through the engine: tests run a few hundred,
scripts/trials/soak_store.py thousands.

A process is forked from one that has imported the engine (forked.py), strace attaches to it and kills it at
the chosen call. Then another engine opens what is left.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.engine import engine_scenarios as scenarios
from support.engine.engine_scenarios import NAME, SCENARIOS, Step
from support.forked import Forks, killing

from dsearch.engine import SearchEngine

Point = tuple[str, int]  # the call, and how many of its name have been before in this process, and one
PROGRAM = "engine_process"


def forks() -> Forks:
    """Where the processes come from."""
    return Forks(Path(__file__).parent, PROGRAM)


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
    forks: Forks,
    scratch: Path,
    trials: int,
    *,
    seed: int = 1,
    only: Sequence[str] = SCENARIOS,
) -> dict[str, int]:
    """`trials` kills in all, spread evenly over the calls of the scenarios; what was seen.

    Raises AssertionError when an acknowledged write is lost, a deleted document is back, half of something
    shows, or what is left cannot be opened, verified, searched and written.
    """
    tally: Counter[str] = Counter()
    points: list[tuple[str, Point]] = []
    out = scratch / "out"
    for scenario in only:
        base = scratch / f"{scenario} {seed}"
        base.mkdir()
        if scenario != "create":
            status, _ = forks.run(PROGRAM, [base, scenario, seed, "before"], out)
            assert status == 0
        points += [(scenario, point) for point in points_of(forks, base, scenario, seed)]
    tally["calls"] = len(points)
    step = max(1.0, len(points) / trials)
    for number in sorted({int(place * step) for place in range(trials) if place * step < len(points)}):
        scenario, (call, count) = points[number]
        home = scratch / "home"
        shutil.copytree(scratch / f"{scenario} {seed}", home)
        asked = [home, scenario, seed, "of"]
        status, log = forks.run(PROGRAM, asked, out, strace=killing((call, count)))
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


def points_of(forks: Forks, base: Path, scenario: str, seed: int) -> list[Point]:
    """The calls of a scenario by which it changes files, in their order."""
    home = base.with_name("whole")
    shutil.copytree(base, home)
    points = forks.calls(PROGRAM, [home, scenario, seed, "of"], base.parent)
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
