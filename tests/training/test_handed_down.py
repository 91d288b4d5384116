"""The seed, the gate, the device and the observer of a job are those of all that does its work.

Jobs run as they are, with values that are not the defaults, and every call of a function of the package that
takes one of them is looked at: a value that is not handed on, at any depth, is named with its function.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.numbers import number_documents
from support.training.observers import Recorder

import dsearch.training
from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.jobs import JudgedQueries, SavingJob, TrainingJob, TuningJob
from dsearch.store import Event, Impression
from dsearch.training import (
    FullOptions,
    Gate,
    examples_from_judgements,
    finetune_full,
    run_training,
    run_tuning,
    save_model,
)
from dsearch.training.evaluation import Baseline, compare_values, judge_regression
from dsearch.training.finetune import stage_fit
from dsearch.training.finetune import values as finetune_values
from dsearch.training.gate.gate import CLAIMS, GateReport, judge, judge_scores
from dsearch.training.gate.held_out import Answers
from dsearch.training.judging import queries_to_judge
from dsearch.types import Document

TRAINING = Path(dsearch.training.__file__).parent
SEED, DEVICE = 5, "cpu:0"
GATE = Gate(margin=0.375)
SHARES = [claim * GATE.alpha for claim in CLAIMS]
OBSERVER = Recorder()
GIVEN: dict[str, Any] = {"seed": SEED, "gate": GATE, "device": DEVICE, "observer": OBSERVER, "keywords": True}
WITHOUT_KEYWORDS = ("corpus", "full_scope")  # jobs
OPTIONS: dict[str, Any] = {"seed": SEED, "margin": GATE.margin}

HANDED_ON = ("start", "queries of training.gate.gate.judge_candidates")
"""Arguments that change on their way, and are given all the same."""
LOOKED_AT = {*GIVEN, "start"}
OF_ITS_OWN = {
    "training.options.TrainingOptions.__init__: keywords": "served queries are ranked with them",
    "training.options.TrainingOptions.__init__: seed": "of a ranking, which draws nothing",
    "training.ranking.KeywordScores.__init__: device": "held-out queries are ranked on the CPU",
}
"""Values that are not the job's, and why."""
DRAWS_OF_ITS_OWN = {"hidings_of", "_without_episodes"}
NOT_RUN = {
    "corpus.made_queries.nonsense_queries": "of a calibration",
    "training.confidence.made_queries": "by the same queries whatever the seed: test_confidence.py",
    "training.confidence.calibration_of": "as above",
    "training.evaluation.run_evaluation": "test_evaluation.py",
    "training.losses.passages.FurtherPassages.to": "long documents: test_passages.py",
    "training.head_task.StageLoss.__init__": "test_stage_loss.py",
    "training.loop.distributed.joined": "processes that train together: loop/test_distributed.py",
    "training.memory.MemoryTrials.searched": "a report that was made",
    "training.saving._encoded": "test_saving.py",
    "training.registry._GoingLive.go_live": "test_live_at_start.py",
    **dict.fromkeys(
        (f"evaluation.report.{name}" for name in ("build_report", "_lines", "_better_leg")), "reports"
    ),
    "training.head_task.train_head": "for callers of the package: loop/test_loop.py",
}
"""Functions that no job here calls, and where else they are looked at."""


def _functions() -> dict[CodeType, str]:
    """Code of each function that takes one of them → its name."""
    names: dict[CodeType, str] = {}
    modules = [found.name for found in pkgutil.walk_packages(dsearch.training.__path__, "dsearch.training.")]
    for name in (*modules, "dsearch.evaluation.report", "dsearch.corpus.made_queries"):
        module = importlib.import_module(name)
        for owner in (module, *(one for one in vars(module).values() if inspect.isclass(one))):
            for member in vars(owner).values():
                function = inspect.unwrap(getattr(member, "__func__", member))
                taken = getattr(function, "__module__", "") == name and inspect.isfunction(function)
                if taken and LOOKED_AT & {*inspect.signature(function).parameters}:
                    names[function.__code__] = f"{name}.{function.__qualname__}".removeprefix("dsearch.")
    return names


FUNCTIONS = _functions()


@dataclass
class Watched:
    """What functions were called with: names and values, seeds of draws, judged queries of a calibration."""

    given: dict[str, Any]
    values: list[tuple[str, str, Any]] = field(default_factory=list)
    draws: list[tuple[str, Any]] = field(default_factory=list)
    calibrated_by: list[Any] = field(default_factory=list)

    def wrong(self) -> set[str]:
        """Functions that got another value than the job's."""
        found = set[str]()
        for name, parameter, value in self.values:
            if parameter not in GIVEN:
                if value is None:
                    found.add(f"{name}: {parameter} is not given")
                continue
            if isinstance(value, Mapping) or type(value).__name__ == "Together":
                continue  # a report as JSON; an observer of several processes
            value = value.gate if isinstance(value, GateReport) else value
            if isinstance(value, Gate) and value.alpha in SHARES:  # rows and head divide it
                value = replace(value, alpha=GATE.alpha)
            value = DEVICE if value == torch.device("cpu") else value
            if value != self.given[parameter] and (place := f"{name}: {parameter}") not in OF_ITS_OWN:
                found.add(f"{place} is {value!r}, not {self.given[parameter]!r}")
        for name, seed in self.draws:
            if SEED not in (seed if isinstance(seed, list) else [seed]) and name not in DRAWS_OF_ITS_OWN:
                found.add(f"{name} draws by {seed!r}")
        return found


@contextmanager
def watched(job: str) -> Iterator[Watched]:
    seen = Watched({**GIVEN, "keywords": job not in WITHOUT_KEYWORDS})
    default_rng, before = np.random.default_rng, sys.getprofile()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := FUNCTIONS.get(frame.f_code)) is not None:
            arguments = frame.f_locals
            seen.values.extend((name, one, arguments[one]) for one in LOOKED_AT if one in arguments)
            if f"queries of {name}" in HANDED_ON:
                seen.values.append((name, "queries", arguments["queries"]))

    def drawn(seed: Any = None) -> Any:
        code = sys._getframe(1).f_code  # pyright: ignore[reportPrivateUsage]
        if TRAINING in Path(code.co_filename).parents:
            seen.draws.append((code.co_name, seed))
        return default_rng(seed)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(np.random, "default_rng", drawn)
        sys.setprofile(called)
        try:
            yield seen
        finally:
            sys.setprofile(before)


@dataclass(frozen=True)
class Given:
    """Collections to learn from: of words, and one whose encoder can be trained."""

    words: Collection
    queries: dict[str, str]
    judgements: dict[str, dict[str, float]]
    numbers: Collection
    sentences: Collection
    folder: Path

    @property
    def judged(self) -> dict[str, Any]:
        return {"queries": self.queries, "judgements": self.judgements}

    def train(self, **options: Any) -> None:
        self.run(self.words, **options)

    def run(self, collection: Collection, **options: Any) -> None:
        job = TrainingJob(**{"epochs": 1, "batch_size": 256, **OPTIONS, **options})
        run_training(collection, job, OBSERVER, device=DEVICE)


def head(given: Given) -> None:
    given.train(**given.judged)


def clicks(given: Given) -> None:
    given.train(source="feedback", trusted_keys=["trusted"])


def corpus(given: Given) -> None:
    given.run(given.sentences, self_supervised=True)


def field_of_documents(given: Given) -> None:
    given.train(objective="context", field="n")


def full_scope(given: Given) -> None:
    queries = {f"q{i:02d}": f"question {i}" for i in range(12)}
    judgements = {f"q{i:02d}": {f"d{i}": 1.0} for i in range(12)}
    options = FullOptions(epochs=1, seed=SEED, keywords=False, query_keys=False)
    examples = examples_from_judgements(given.numbers, queries, judgements)
    start = Head(given.numbers.store.dimension)
    finetune_full(given.numbers, examples, options, gate=GATE, start=start, observer=OBSERVER)
    stage, epoch = OBSERVER.epochs[-1]
    assert stage == "train"
    assert epoch.before is not None
    assert epoch.after is not None


def tuning(given: Given) -> None:
    run_tuning(given.words, TuningJob(**given.judged, **OPTIONS), OBSERVER)


def saving(given: Given) -> None:
    evidence = JudgedQueries(given.queries, given.judgements)
    layer = Head(given.words.store.dimension)
    save_model(given.words, layer, evidence=evidence, promote=False, observer=OBSERVER, **OPTIONS)


def scores(given: Given) -> None:
    queries_to_judge(given.words, seed=SEED)
    job = SavingJob(before=[0.5] * 12, after=[0.75] * 12, **OPTIONS)
    judge_scores(job, Gate.of_risk(job.risk, alpha=job.alpha, margin=job.margin))
    compare_values({"q0": 0.5, "q1": 0.25}, {"q0": 0.75, "q1": 0.25}, seed=SEED)
    judge_regression(Baseline("a", {"q": 1.0}), Baseline("b", {"q": 0.5}), tolerated=GATE.margin, seed=SEED)
    seen = np.arange(48) < 24
    before = Answers(np.where(seen, 1.0, 0.0), seen, np.where(seen, np.nan, 0.0))
    after = Answers(np.where(seen, 0.125, 1.0), seen, np.where(seen, np.nan, 1.0))
    assert judge(before, after, GATE, seed=SEED).verdict == "refused"  # by a slice


JOBS = (head, clicks, corpus, field_of_documents, full_scope, tuning, saving, scores)


def _passing(*answers: Any, **options: Any) -> GateReport:
    return replace(judge(*answers, **options), verdict="passed")


def _documents() -> list[Document]:
    """Documents with a title, two sentences and a number."""
    sentences = (
        "The {} of {} lies in the house beside {}.",
        "Nobody has asked for {} since {} was {} there.",
    )
    return [
        Document(
            f"d{i}",
            " ".join(one.format(f"b{i % 11}", f"c{i % 13}", f"e{i}") for one in sentences),
            title=f"a{i % 7}",
            metadata={"n": float(i % 9)},
        )
        for i in range(48)
    ]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Watched]:
    """What was called by each job."""
    homes = tmp_path_factory.mktemp("handed")
    by_job: dict[str, Watched] = {}
    with (
        SearchEngine(homes / "words", encoder=HashingEncoder) as engine,
        SearchEngine(homes / "numbers", encoder=HashingEncoder) as other,
        pytest.MonkeyPatch.context() as patched,
    ):
        words = engine.create("words")
        words.ingest(_documents(), second_stage=True)
        queries = {f"q{i}": f"a{i % 7} c{i % 13}" for i in range(48)}
        judgements = {f"q{i}": {f"d{i}": 1.0} for i in range(48)}
        for key, places in {"a": range(40), "trusted": range(20, 48)}.items():
            shown = [Impression(f"{key}{i}", queries[f"q{i}"], 0.0, ids=(f"d{i}", "d9")) for i in places]
            clicked = [
                Event(f"e{p.query_id}", p.query_id, key, "", "click", p.ids[0], 1, 0.0, 0.0) for p in shown
            ]
            words.feedback.record(shown, clicked)
        numbers = other.create("numbers")
        numbers.ingest(number_documents(), second_stage=True)
        sentences = other.create("sentences")
        sentences.ingest(_documents())
        given = Given(words, queries, judgements, numbers, sentences, homes)
        patched.setattr(stage_fit, "METHODS", stage_fit.METHODS[:2])  # each is fitted like the others
        patched.setattr(sys.modules[finetune_full.__module__], "judge", _passing)
        run_module = importlib.import_module("dsearch.training.run")
        running: list[str] = []

        def calibrated(record: Any, _: Collection, head: Head, judged: Any, *more: Any, **by: Any) -> Any:
            by_job[running[-1]].calibrated_by.append(judged)
            return record

        patched.setattr(run_module, "with_calibration", calibrated)
        patched.setattr(run_module, "made_queries", lambda _: None)
        patched.setattr(finetune_values, "MOST", 5)  # so few are drawn, in one fold
        patched.setattr(finetune_values, "ENOUGH", 1)
        for job in JOBS:
            running.append(job.__name__)
            with watched(job.__name__) as by_job[job.__name__]:
                job(given)
    return by_job


@pytest.mark.parametrize("job", [job.__name__ for job in JOBS])
def test_each_function_of_a_job_has_what_the_job_has(seen: dict[str, Watched], job: str) -> None:
    assert not (wrong := seen[job].wrong()), "\n".join(sorted(wrong))


def test_no_function_is_left_out(seen: dict[str, Watched]) -> None:
    called = {name for watched in seen.values() for name, _, _ in watched.values}
    assert {*FUNCTIONS.values()} - called == {*NOT_RUN}


def test_only_judgements_say_how_likely_hits_are_right(seen: dict[str, Watched]) -> None:
    """Queries made of the documents' own sentences are held out too, and are nobody's."""
    assert seen["corpus"].calibrated_by[0] is None
    assert seen["head"].calibrated_by[0] is not None
