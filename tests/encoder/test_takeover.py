"""`AutomaticEncoder` by encoders of a few lines: its identity, its note, and what is asked for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.encoder import AutomaticEncoder, EncoderIdentity
from dsearch.encoder import automatic as module
from dsearch.encoder.automatic import CachedExport, load_automatic
from dsearch.encoder.compiled import Exporting, ExportOrigin
from dsearch.encoder.weights import Weights


def fake(backend: str = "torch", dtype: str = "float32") -> Any:
    return SimpleNamespace(identity=EncoderIdentity("own", "", "abc", "mean", 64, backend, dtype, 8))


@pytest.fixture
def request_(tmp_path: Path) -> Exporting:
    return Exporting("own", Weights(tmp_path, "", "a" * 64), None, tmp_path / "cache", fake)


@pytest.fixture
def preparations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was prepared; none of it ends."""
    made: list[Any] = []

    class Preparation:
        def __init__(self, *given: Any):
            self.given, self.started, self.waited = given, list[bool](), list[float | None]()
            made.append(self)

        def start(self, *, again: bool) -> None:
            self.started.append(again)

        def wait(self, timeout_s: float | None = None) -> bool:
            self.waited.append(timeout_s)
            return False

    monkeypatch.setattr(module, "Preparation", Preparation)
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_its_identity_is_that_of_torch_in_single_precision(backend: str, dtype: str) -> None:
    """A collection that it has encoded opens on every machine, in whichever precision this one computes."""
    encoder = AutomaticEncoder(fake(backend, dtype))
    assert encoder.identity == fake().identity
    assert str(encoder.runs_by) == f"{backend} {dtype}"
    encoder.take_over(fake("openvino"))
    assert (encoder.identity, str(encoder.runs_by)) == (fake().identity, "openvino float32")


def test_a_takeover_ends_the_note_and_a_problem_is_one() -> None:
    encoder = AutomaticEncoder(fake(), "an export is being prepared")
    encoder.stay("no room")
    assert encoder.note == "no room"
    encoder.take_over(fake("openvino"))
    assert encoder.note is None


def test_what_is_to_be_prepared_is_started_once(request_: Exporting, preparations: list[Any]) -> None:
    encoder = AutomaticEncoder(fake())
    assert encoder.wait()
    encoder.start()  # nothing to start
    encoder.to_prepare(request_, "float32", 7, again=True)
    assert preparations == []
    for _ in range(2):
        encoder.start()
    (one,) = preparations
    assert one.given[:3] == (request_, "float32", 7)
    assert one.started == [True]
    assert not encoder.wait(0.5)
    assert not encoder.wait()
    assert one.waited == [0.5, None]


@pytest.mark.parametrize(
    ("cached", "runs_by", "note"),
    [
        (CachedExport(fake("openvino", "bfloat16")), "openvino bfloat16", None),
        (CachedExport(problem="it does not agree"), "torch float32", "it does not agree"),
        (CachedExport(damaged=True), "torch float32", "an export for openvino is being prepared"),
    ],
    ids=["exported", "refused", "damaged"],
)
def test_trained_changes_are_exported_as_their_base_whatever_became_of_that(
    request_: Exporting,
    preparations: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    cached: CachedExport,
    runs_by: str,
    note: str | None,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "from_cache", lambda *given: asked.append(given) or cached)
    encoder: Any = load_automatic(request_, fake, "float32", 7, lambda told: None)
    assert asked == [(request_, "float32", 7)]
    assert encoder.origin == ExportOrigin(request_, "float32", 7)
    assert (str(encoder.runs_by), encoder.note) == (runs_by, note)
    assert [one.started for one in preparations] == ([[True]] if cached.damaged else [])
