"""An export in another process: what that process is told, and what becomes of its end."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import LATEST_S

from dsearch.encoder import automatic as module
from dsearch.encoder import load
from dsearch.encoder.automatic import ExportOutcome, Preparation, outcome, record_problem
from dsearch.encoder.compiled import Exporting
from dsearch.encoder.weights import Weights

ENCODER = SimpleNamespace(encode_queries=lambda texts: None)


class Heard:
    def __init__(self) -> None:
        self.ready: list[Any] = []
        self.problems: list[str] = []


class Process:
    """A process that has ended."""

    def __init__(self, said: bytes = b"", status: int = 0):
        self.stdout, self.returncode = io.BytesIO(said), status

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def prepared(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a preparation whose process ends at once; gives its command and options."""

    def prepare(process: Process | None = None, *, again: bool = False, trained: str | None = None) -> Any:
        started: list[tuple[list[str], dict[str, Any]]] = []

        def start(command: list[str], **options: Any) -> Process:
            started.append((command, options))
            return process or Process()

        monkeypatch.setattr(module, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
        weights = Weights(tmp_path, "", "a" * 64)
        request = Exporting("some/model", weights, None, tmp_path / "cache", lambda: None, trained)  # type: ignore[arg-type, return-value]
        one = Preparation(request, "bfloat16", 7, heard.ready.append, heard.problems.append)
        one.start(again=again)
        assert one.wait(LATEST_S)
        return started[0]

    return prepare


def with_outcome(monkeypatch: pytest.MonkeyPatch, result: ExportOutcome, encoder: Any = ENCODER) -> list[Any]:
    """Let the cache have this outcome and encoder; what is asked of it."""
    asked: list[Any] = []

    def outcome(request: Any, dtype: str | None) -> ExportOutcome:
        asked.append(dtype)
        return result

    def cached(request: Any, dtype: str, **options: Any) -> Any:
        asked.append((dtype, options))
        return encoder

    monkeypatch.setattr(module, "outcome", outcome)
    monkeypatch.setattr(module, "cached_encoder", cached)
    return asked


HALF = ExportOutcome("bfloat16")


def test_the_export_is_handed_over_with_its_batch_size(
    prepared: Any, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_outcome(monkeypatch, HALF)
    warmed: list[Any] = []
    monkeypatch.setattr(ENCODER, "encode_queries", warmed.append)
    prepared()
    assert asked == ["bfloat16", ("bfloat16", {"batch_size": 7})]
    assert heard.ready == [ENCODER]
    assert heard.problems == []
    assert len(warmed) == 1  # the first call is slow, and not a user's


def broken(texts: Any) -> None:
    raise RuntimeError("illegal instruction")


PROBLEMS: list[tuple[ExportOutcome, Any, Process, str]] = [
    (ExportOutcome(problem="no fast tokenizer"), None, Process(b'{"problem": "x"}'), "no fast tokenizer"),
    (ExportOutcome(), None, Process(b'noise\n{"problem": "disk full"}\n'), "disk full"),
    (ExportOutcome(), None, Process(status=-9), "the process that exports ended with status -9"),
    (ExportOutcome(), None, Process(b" \n", 1), "the process that exports ended with status 1"),
    (HALF, None, Process(), "the export was damaged at once"),
    (HALF, SimpleNamespace(encode_queries=broken), Process(), "RuntimeError: illegal instruction"),
]


@pytest.mark.parametrize(("result", "encoder", "process", "problem"), PROBLEMS)
def test_torch_stays_and_the_reason_is_said(
    prepared: Any,
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
    result: ExportOutcome,
    encoder: Any,
    process: Process,
    problem: str,
) -> None:
    with_outcome(monkeypatch, result, encoder)
    process.stdout = io.BytesIO(process.stdout.getvalue())
    prepared(process)
    assert heard.problems == [problem]
    assert heard.ready == []


def run(code: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """Run what the process runs; the locks it takes, and the calls it makes."""
    locks: list[str] = []
    calls: list[Any] = []

    def lock(path: str) -> Any:
        locks.append(path)
        return nullcontext()

    fakes: dict[str, Any] = {
        "filelock": SimpleNamespace(FileLock=lock),
        "dsearch.threads": SimpleNamespace(set_threads=calls.append),
        "dsearch.encoder.load": SimpleNamespace(prepare=lambda *given: calls.append(given)),
    }
    with monkeypatch.context() as patch:
        patch.setattr(os, "nice", lambda by: locks.append(f"nice {by}"))
        patch.setattr(sys, "path", [*sys.path])
        for name, fake in fakes.items():
            patch.setitem(sys.modules, name, fake)
        exec(code, {})
    return locks, calls


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("trained", [None, '{"a": "it\'s"}'])
def test_the_process_is_told_everything(
    prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: str | None, again: bool
) -> None:
    with_outcome(monkeypatch, HALF)
    command, options = prepared(again=again, trained=trained)
    assert options["start_new_session"] is True  # Ctrl-C is not for it
    assert options["stdin"] is subprocess.DEVNULL
    assert options["stderr"] is subprocess.DEVNULL
    (first, lock), calls = run(command[-1], monkeypatch)
    cache = tmp_path / "cache"
    assert first == "nice 10"
    assert Path(lock).parent == cache
    assert lock.endswith(".preparing")
    assert calls == [1, ("some/model", str(cache), trained)]


@pytest.mark.parametrize("again", [False, True])
def test_what_another_process_has_exported_is_made_again_only_where_it_is_damaged(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    with_outcome(monkeypatch, HALF)
    command, _ = prepared(again=again)
    (_, lock), _ = run(command[-1], monkeypatch)
    export = Path(lock.removesuffix(".preparing"))
    export.mkdir()
    (export / "export.json").write_text("{}")
    assert bool(run(command[-1], monkeypatch)[1]) is again


def test_a_cache_that_cannot_be_written_starts_nothing(
    prepared: Any, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot be written"):
        prepared()
    assert heard.ready == heard.problems == []


@pytest.mark.parametrize("change", [None, "a change"])
def test_earlier_exports_are_removed_after_that_of_a_trained_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str | None
) -> None:
    steps: list[str] = []
    request = SimpleNamespace()
    monkeypatch.setattr(load, "find_weights", lambda name: Weights(tmp_path, "", "a" * 64))
    monkeypatch.setattr(load, "ensure_exported", lambda *given: steps.append("exported"))
    monkeypatch.setattr(load, "forget_earlier", lambda *given: steps.append("forgotten"))
    monkeypatch.setattr(load, "TrainedChange", SimpleNamespace(from_json=lambda text: text))
    monkeypatch.setattr(load, "trained_request", lambda *given: request)
    load.prepare("own", str(tmp_path), change)
    assert steps == (["exported"] if change is None else ["exported", "forgotten"])


def request(folder: Path, digest: str = "a") -> Exporting:
    return Exporting("model", Weights(folder, "", digest * 64), None, folder, lambda: None)  # type: ignore[arg-type, return-value]


def measured(least: float, mean: float) -> dict[str, Any]:
    return {"least": least, "mean": mean, "agrees": True}


def test_an_export_is_used_by_its_worst_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = {"float32": measured(0.9999, 1.0), "bfloat16": measured(0.9998, 1.0)}
    monkeypatch.setattr(module, "agreement_of", lambda *given: agreement)
    monkeypatch.setattr(module, "best_dtype", lambda name: "bfloat16")
    assert outcome(request(tmp_path)) == ExportOutcome("float32")
    refused = outcome(request(tmp_path), "bfloat16")
    assert refused.dtype is None
    assert "the least cosine of openvino with torch is 0.99980, and 0.9999" in str(refused.problem)
    agreement["bfloat16"] = measured(0.9999, 0.9999)
    assert outcome(request(tmp_path)) == ExportOutcome("bfloat16")


def test_a_problem_is_of_one_model(tmp_path: Path) -> None:
    own = request(tmp_path)
    assert outcome(own) == ExportOutcome()
    record_problem(own, "no fast tokenizer")
    assert outcome(own) == ExportOutcome(problem="no fast tokenizer")
    assert outcome(request(tmp_path, "b")) == ExportOutcome()
    assert len(list(tmp_path.iterdir())) == 1
    record_problem(request(tmp_path / "nowhere"), "x")  # no effect where nothing can be written
