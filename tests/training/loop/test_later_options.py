"""A run that a release without some option began goes on under one that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dsearch import Document, SearchEngine
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training import RunFolder, run_training
from dsearch.training.full_task import FullOptions
from dsearch.training.options import TrainingOptions, ValueOptions
from tests.support.training.observers import StopWhen

KINDS = (TrainingOptions, ValueOptions, FullOptions)
OPTIONS = [(kind, name) for kind in KINDS for name in kind.__dataclass_fields__]


def _identity(kind: type, **options: Any) -> dict[str, Any]:
    chosen = {**asdict(kind()), **options}
    return {"data": "a", "options": chosen, "defaults": asdict(kind()), "parent": "v0"}


def _begun_without(path: Path, identity: Mapping[str, Any], name: str) -> None:
    """A run in `path` whose release had no option of this name."""
    RunFolder(path, dict(identity))
    stored = json.loads((path / "run.json").read_text())
    del stored["options"][name]
    (path / "run.json").write_text(json.dumps(stored))


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
def test_a_missing_option_counts_as_its_default(kind: type, name: str, tmp_path: Path) -> None:
    _begun_without(tmp_path / "run", _identity(kind), name)
    RunFolder(tmp_path / "run", _identity(kind), resume=True)
    other = {name: "another"}
    with pytest.raises(InvalidRequest, match=rf"options is \{{'{name}': .*\}} there, .*'another'\}} here"):
        RunFolder(tmp_path / "run", _identity(kind, **other), resume=True)


def test_defaults_are_not_stored(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", _identity(TrainingOptions))
    assert set(json.loads((tmp_path / "run" / "run.json").read_text())) == {
        "format", "data", "options", "parent", "finished",
    }  # fmt: skip


def test_an_option_of_another_release_without_a_default_here_is_refused_by_name(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", _identity(TrainingOptions, momentum=0.9))
    with pytest.raises(InvalidRequest, match=r"options is \{'momentum': 0\.9\} there, \{\} here"):
        RunFolder(tmp_path / "run", _identity(TrainingOptions), resume=True)


def test_an_interrupted_training_of_an_older_release_goes_on(engine: SearchEngine, tmp_path: Path) -> None:
    pairs = engine.create("pairs")
    pairs.ingest([Document(f"d{i}", f"answer{i} colour{i % 3}") for i in range(24)])
    queries = {f"q{i}": f"question{i} colour{i % 3}" for i in range(24)}
    judgements = {f"q{i}": {f"d{i}": 1.0} for i in range(24)}

    def training(**options: Any) -> TrainingJob:
        return TrainingJob(queries=queries, judgements=judgements, epochs=2, tune=False, **options)

    def begun(identity: Mapping[str, Any], join: bool) -> RunFolder:
        _begun_without(tmp_path / "run", identity, "precision")
        return RunFolder(tmp_path / "run", dict(identity), resume=True)

    def resumed(identity: Mapping[str, Any], join: bool) -> RunFolder:
        return RunFolder(tmp_path / "run", dict(identity), resume=True)

    steps = iter(range(100))
    with pytest.raises(Cancelled):
        run_training(pairs, training(), StopWhen(lambda: next(steps) >= 5), open_run=begun)
    assert "precision" not in json.loads((tmp_path / "run" / "run.json").read_text())["options"]
    with pytest.raises(InvalidRequest, match=r"'float32'\} there, \{'precision': 'bfloat16'\} here"):
        run_training(pairs, training(precision="bfloat16"), open_run=resumed)
    learned = run_training(pairs, training(), open_run=resumed)
    plain = run_training(pairs, training())
    assert learned.result.head.key_delta.equal(plain.result.head.key_delta)
