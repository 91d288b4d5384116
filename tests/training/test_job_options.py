"""Each option of a training and of a tuning reaches what does the work, whatever is learned, from what.

Trainers are replaced by recorders; examples, gates and runs are real. A job with the option must be refused,
naming it, or call something else than the job without it; an option that changes what is learned is part of
the identity by which a run is gone on with, any other is not.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from support.cli.recorder import holds, plain
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.jobs import LearningJob, TrainingJob, TuningJob, options_of
from dsearch.store import Event, Impression
from dsearch.training import Gate, run_training, run_tuning
from dsearch.training.finetune.head import TrainingResult
from dsearch.training.finetune.outcomes import OutcomeMemory
from dsearch.training.finetune.second_stage import FoldHeads
from dsearch.training.gate.gate import judge
from dsearch.training.options import check_stage_options
from dsearch.training.tune import DEFAULT, TunedSearch
from dsearch.types import Document

PAIRS = 24
QUERIES = {f"q{i}": f"question{i} colour{i % 3}" for i in range(PAIRS)}
JUDGEMENTS = {f"q{i}": {f"d{i}": 1.0} for i in range(PAIRS)}
JUDGED: dict[str, Any] = {"queries": QUERIES, "judgements": JUDGEMENTS}

WAYS: dict[str, dict[str, Any]] = {
    "judgements": JUDGED,
    "the corpus": {"self_supervised": True},
    "clicks": {"source": "feedback"},
    "clicks, judged": {"source": "feedback", **JUDGED},
    "query": {"scope": "query", **JUDGED},
    "query, the corpus": {"scope": "query", "self_supervised": True},
    "full": {"scope": "full", **JUDGED},
    "context": {"objective": "context", "field": "n"},
}
"""Each job without the option."""
GIVEN: dict[str, Any] = {
    "queries": {**QUERIES, "q0": "another question"},
    "judgements": {**JUDGEMENTS, "q0": {"d5": 1.0}},
    "exclude": {"q0": ["d7"]},
    "left_out": {"made up": 7},
    "seed": 7,
    "promote": False,
    "accept": True,
    "risk": "bold",
    "alpha": 0.375,
    "margin": 0.625,
    "teacher": {"q0": {"d0": 0.5}},
    "trusted_keys": ["trusted"],
    "self_supervised": True,
    "source": "feedback",
    "scope": "query",
    "encoder_training": {"lora": "all", "all": "lora"},
    "encoder_learning_rate": 0.0625,
    "objective": "marginal",
    "field": "m",
    "heads": 7,
    "excitation": True,
    "query_side": "mlp",
    "epochs": 7,
    "learning_rate": 0.125,
    "batch_size": 7,
    "negatives": 7,
    "precision": "bfloat16",
    "compiled": True,
    "tune": False,
    "memory": False,
    "stage_loss": True,
    "reranker": "given/reranker",
}
"""What is given."""
ONLY_A_DIFFERENCE = {
    *("queries", "judgements", "exclude", "teacher", "trusted_keys"),  # as arrays, or a call
    "memory of clicks, judged",
    "alpha of clicks, judged",  # rows and head divide it
    *("left_out", "risk", "field", "source", "self_supervised", "stage_loss"),
}
BESIDE: dict[str, dict[str, Any]] = {
    "excitation": {"heads": 2},
}
"""Some options go only with others."""
CHOOSE = {"self_supervised", "source", "scope"}
"""Options that are given to choose another way: those of `WAYS`."""
NOT_JUDGED = ("the corpus", "clicks", "query, the corpus", "context")
UNTUNED = ("the corpus", "query, the corpus", "full", "context")
OF_NO_USE = {
    **{f"{name} of {way}": "nothing is judged" for name in ("exclude", "left_out") for way in NOT_JUDGED},
    **{f"{name} of {way}": "neither is begun from" for name in ("tune", "memory") for way in UNTUNED},
    "tune of clicks": "clicks do not start from a tuned search",
    "tune of clicks, judged": "clicks do not start from a tuned search",
    "memory of clicks": "its rows are judged by whom one trusts; without them there are none",
}
"""What has no effect, and why that is no loss."""
NOT_LEARNED = {
    "left_out": "for the record",
    "promote": "said when the result is stored",
    "accept": "said when the result is stored",
    "risk": "of the gate",
    "alpha": "of the gate",
    "margin": "of the gate",
    "reranker": "of the second stage, which is fitted when the head is trained",
    **{
        f"{name} of {way}": "judges what was learned"
        for name in ("queries", "judgements", "exclude")
        for way in ("clicks, judged",)
    },
    "memory of clicks, judged": "its rows are judged beside the head",
}
"""Options that may change between an interrupted run and what goes on with it."""


class Recorded(NamedTuple):
    """The calls of a job, and the identity of its run."""

    calls: list[Any]
    identity: dict[str, Any]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("reach") / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("pairs")
        documents = [
            Document(
                f"d{i}",
                f"The answer{i} has the colour{i % 3} of that day. A second sentence of document{i} is here.",
                title=f"title{i} of it",
                metadata={"n": float(i), "m": float(i % 5)},
                value=[float(i), 1.0 + i % 4],
            )
            for i in range(PAIRS)
        ]
        collection.ingest(documents, second_stage=True)
        for key, numbers in {"a": range(5), "trusted": range(3, 9)}.items():
            shown = [Impression(f"{key}{i}", QUERIES[f"q{i}"], 0.0, ids=(f"d{i}", "d9")) for i in numbers]
            events = [
                Event(f"{key}-{one.query_id}", one.query_id, key, "", "click", one.ids[0], 1, 0.0, 0.0)
                for one in shown
            ]
            collection.feedback.record(shown, events)
        yield collection


TRAINERS = ("finetune", "finetune_full", "finetune_values", "finetune_from_feedback")
LATER = (
    "tune",
    "strength_behind",
    "train_second_stage",
    "remember_outcomes",
)
REAL = {
    name: function
    for name, function in vars(importlib.import_module("dsearch.training.run")).items()
    if inspect.isfunction(function)
    and function.__module__.startswith("dsearch.training.")
    and not {"job", "chosen"} & {*inspect.signature(function).parameters}  # they take all there is
}
"""The functions that a job calls: trainers, and what comes later, are replaced, the others only observed."""


@dataclass(frozen=True)
class Trainers:
    """Recorders in place of what trains, over one collection."""

    collection: Collection
    outside: MagicMock
    path: Path

    def recorded(self, job: LearningJob) -> Recorded:
        """The calls of a job up to where its result is stored."""
        self.outside.reset_mock()
        identities: list[Mapping[str, Any]] = []

        def open_run(identity: Mapping[str, Any], join: bool) -> Any:
            identities.append(identity)
            folder = MagicMock()
            folder.live_at_start = "v0"
            return folder

        if isinstance(job, TrainingJob):
            learned = run_training(self.collection, job, open_run=open_run)
        else:
            assert isinstance(job, TuningJob)
            learned = run_tuning(self.collection, job)
        self.outside.result(learned.examples, learned.left_out)
        learned.register(self.collection, job)
        calls = [plain([name, args, options]) for name, args, options in self.outside.mock_calls]
        return Recorded(calls, plain_identity(identities))


def plain_identity(identities: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What a run is known by; {} of a job without one."""
    return {} if not identities else {name: plain(value) for name, value in identities[0].items()}


@pytest.fixture
def trainers(opened: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainers:
    outside = MagicMock()
    run_module, options_module, summary_module = (
        importlib.import_module(f"dsearch.training.{name}") for name in ("run", "options", "registry")
    )
    report = judge(None, None, Gate())
    head = Head(opened.store.dimension)
    record = {"options": {"seed": 11}, "gate": report.to_dict()}
    judged: dict[str, Any] = {"head": head, "record": record, "gate": report}
    folds = (FoldHeads([0], {"start": head, "head": head}),)
    result = TrainingResult(**judged, epochs=1, headroom=MagicMock(), folds=folds)
    for name in TRAINERS:
        getattr(outside, name).return_value = result
        monkeypatch.setattr(run_module, name, getattr(outside, name))
    for name in LATER:
        monkeypatch.setattr(run_module, name, getattr(outside, name))
    monkeypatch.setattr(options_module, "reranker_of", lambda name: name)
    monkeypatch.setattr(run_module, "reranker_of", lambda name: name)
    for name in {*REAL} - {*TRAINERS, *LATER}:
        real = getattr(run_module, name)
        if getattr(real, "__module__", "") != run_module.__name__:
            observed = MagicMock(wraps=real)
            outside.attach_mock(observed, name)
            monkeypatch.setattr(run_module, name, observed)
    monkeypatch.setattr(run_module, "ServedQueries", outside.ServedQueries)
    outside.ServedQueries.return_value.judged.return_value = result
    outside.train_second_stage.return_value = None
    rows = OutcomeMemory(rows=[], record=record, with_rows=head, gate=report)
    outside.remember_outcomes.return_value = rows
    tuned = TunedSearch(**judged, setting=DEFAULT, scores={})
    outside.tune.return_value, outside.strength_behind.return_value = tuned, None
    outside.with_calibration.side_effect = lambda record, *_, **__: record
    monkeypatch.setattr(run_module, "tokens_of", lambda *_: [])
    monkeypatch.setattr(summary_module, "register", outside.register)
    return Trainers(opened, outside, tmp_path)


def _names() -> list[str]:
    """Every field of a training, but those that choose another way."""
    return [field.name for field in fields(TrainingJob) if field.name not in CHOOSE]


def _value(name: str, base: Mapping[str, Any]) -> Any:
    given = GIVEN[name]
    if name == "encoder_training":
        return given["lora" if base.get("scope") == "query" else "all"]
    return given


def _refusal(job: LearningJob, collection: Collection) -> str:
    """Why a job is refused; "" if it is not."""
    try:
        job.check()
        if isinstance(job, TrainingJob):
            check_stage_options(job, collection)
    except InvalidRequest as error:
        return str(error)
    return ""


def arrives(having: Recorded, without: Recorded, value: Any) -> bool:
    """A call has the value more often than without the option."""

    def times(record: Any) -> int:
        return sum(map(times, record)) if isinstance(record, list) else int(holds(record, value))

    def by_call(recorded: Recorded) -> Counter[str]:
        counts = Counter[str]()
        for call in recorded.calls:
            counts[call[0]] += times(call)
        return counts

    return bool(by_call(having) - by_call(without))


@pytest.mark.parametrize("way", WAYS)
def test_each_option_reaches_what_trains(trainers: Trainers, way: str) -> None:
    lost: list[str] = []
    base = WAYS[way]
    bases: dict[str, Recorded] = {}
    for name in _names():
        beside = BESIDE.get(name, {})
        options = {**base, **beside}
        if "objective" in base and "objective" in {name, *beside}:
            continue  # a field is learned by its own objectives
        value = _value(name, base)
        if name in ("queries", "judgements") and name not in base:
            continue  # another way
        job = TrainingJob(**{**options, name: value})
        if refusal := _refusal(job, trainers.collection):
            if name not in refusal and not (beside and all(key in refusal for key in beside)):
                lost.append(f"{name}: refused without its name: {refusal}")
            continue
        if str(beside) not in bases:
            bases[str(beside)] = trainers.recorded(TrainingJob(**options))
        without, having = bases[str(beside)], trainers.recorded(job)
        if f"{name} of {way}" in OF_NO_USE:
            if having.calls != without.calls:
                lost.append(f"{name}: has an effect; take it out of OF_NO_USE")
            continue
        differs = having.calls != without.calls
        no_value = name in ONLY_A_DIFFERENCE or f"{name} of {way}" in ONLY_A_DIFFERENCE
        if not (differs and (no_value or arrives(having, without, value))):
            lost.append(f"{name}={value!r} does not reach what trains")
        free = name in NOT_LEARNED or f"{name} of {way}" in NOT_LEARNED
        if (having.identity == without.identity) != free:
            known = "is" if free else "is not"
            lost.append(f"{name}={value!r} {known} part of the identity of a run")
    assert not lost, f"learning from {way}:\n" + "\n".join(lost)


def test_each_option_of_a_tuning_reaches_it(trainers: Trainers) -> None:
    without, lost = trainers.recorded(TuningJob(**JUDGED)), list[str]()
    for field in fields(TuningJob):
        value = GIVEN[field.name]
        having = trainers.recorded(TuningJob(**{**JUDGED, field.name: value}))
        no_value = field.name in ONLY_A_DIFFERENCE
        if having == without or not (no_value or arrives(having, without, value)):
            lost.append(f"{field.name}={value!r} does not reach what tunes")
    assert not lost, "\n".join(lost)


def test_a_value_is_given_for_each_option() -> None:
    assert {*GIVEN} == {field.name for field in fields(TrainingJob)}
    for name, (declared, _) in options_of(TrainingJob).items():
        assert GIVEN[name] != declared.default, name


@pytest.mark.parametrize("way", ["judgements", "the corpus", "full"])
def test_who_trains_together_is_handed_on(trainers: Trainers, way: str) -> None:
    processes, made = MagicMock(first=True), MagicMock()
    options: dict[str, Any] = {"processes": processes} if way == "full" else {"make_task": made}
    run_training(trainers.collection, TrainingJob(**WAYS[way], heads=2 - (way == "full")), **options)
    if way == "full":
        assert trainers.outside.finetune_full.call_args.kwargs["processes"] is processes
    else:
        assert trainers.outside.finetune.call_args.kwargs["task"] is made.return_value
        assert made.call_args.args[0].heads == 2
