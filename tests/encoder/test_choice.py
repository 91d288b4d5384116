"""Which back end `auto` takes, by rates that are written down and encoders that do nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.encoder import Backend, load
from dsearch.encoder.load import GAIN, choose, known_in, read_choice

TORCH, ONNX, VINO = Backend("torch", "float32"), Backend("onnx", "float32"), Backend("openvino", "float32")


class Encoder:
    """Fails, or does nothing."""

    def __init__(self, error: Exception | None = None):
        self.error = error

    def encode_documents(self, texts: Sequence[str]) -> Any:
        if self.error is not None:
            raise self.error
        return np.zeros((len(texts), 1))

    encode_queries = encode_documents


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[Backend, tuple[float, float]]:
    """Rates that are measured; those that are not in it have failed."""
    written: dict[Backend, tuple[float, float]] = {TORCH: (100.0, 100.0)}
    monkeypatch.setattr(load, "candidates", lambda dtype=None: [TORCH, ONNX, VINO])
    monkeypatch.setattr(load, "_rates", lambda encoders: {one: written[one] for one in encoders})
    monkeypatch.setattr(Backend, "missing", lambda self, **_: None)
    return written


def chosen(cache: Path, rates: dict[Backend, tuple[float, float]], told: list[str] | None = None) -> Backend:
    def load(backend: Backend) -> Any:
        if backend == VINO and VINO not in rates:
            raise OSError("no such library")
        return Encoder(None if backend in rates else ValueError("other embeddings"))

    return choose(cache, "abc", None, load, None if told is None else told.append).backend


@pytest.mark.parametrize(
    ("onnx", "openvino", "expected"),
    [
        ((200.0, 200.0), (150.0, 150.0), ONNX),
        ((400.0, 50.0), (150.0, 150.0), VINO),  # by the geometric mean of both rates
        ((400.0, 100.0), (150.0, 150.0), ONNX),
        ((100.0, 400.0), (150.0, 150.0), ONNX),
        ((100.0 * GAIN**2, 100.0), None, ONNX),
        ((100.0 * GAIN**2 - 1, 100.0), None, TORCH),  # too little is gained
        ((90.0, 90.0), None, TORCH),
        (None, None, TORCH),
    ],
)
def test_the_fastest_is_chosen_if_it_gains_enough(
    tmp_path: Path, rates: Any, onnx: Any, openvino: Any, expected: Backend
) -> None:
    rates |= {one: of for one, of in ((ONNX, onnx), (VINO, openvino)) if of is not None}
    assert chosen(tmp_path, rates) == expected


def test_without_torch_the_fastest_needs_no_gain(tmp_path: Path, rates: Any) -> None:
    del rates[TORCH]
    rates[ONNX] = (1.0, 1.0)
    assert chosen(tmp_path, rates) == ONNX
    del rates[ONNX]
    assert chosen(tmp_path, rates) == TORCH  # nothing runs: it says why when it is loaded


def test_what_failed_is_kept_with_its_reason_and_read_back(tmp_path: Path, rates: Any) -> None:
    told: list[str] = []
    cache = tmp_path / "new" / "cache"
    assert not known_in(cache)
    assert chosen(cache, rates, told) == TORCH
    assert known_in(cache)
    assert told[-1] == f"the encoder runs by {TORCH} from now on"
    assert sum("exporting, or loading" in line for line in told) == 3
    again = read_choice(cache, "abc", None)
    assert again is not None
    assert (again.backend, len(again.measured)) == (TORCH, 3)
    by_name = {one.name: one for one in again.measured}
    assert by_name["torch"].queries_per_s == by_name["torch"].documents_per_s == 100.0
    assert by_name["onnx"].problem == "ValueError: other embeddings"
    assert by_name["openvino"].problem == "OSError: no such library"
    assert by_name["onnx"].queries_per_s == 0.0
    assert [one.name for one in cache.iterdir() if one.name.startswith(".")] == []


def test_a_choice_is_of_its_encoder_precision_threads_and_whole_file(
    tmp_path: Path, rates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(tmp_path, rates)
    assert read_choice(tmp_path, "abd", None) is None
    assert read_choice(tmp_path, "abc", "int8") is None
    with monkeypatch.context() as other:
        other.setattr(load, "thread_budget", lambda: 99)
        assert read_choice(tmp_path, "abc", None) is None
    with monkeypatch.context() as other:
        other.setattr(Backend, "missing", lambda self, **_: "not installed any more")
        assert read_choice(tmp_path, "abc", None) is None
    (file,) = tmp_path.glob("choice-*.json")
    stored = json.loads(file.read_text())
    for damaged in ("", "[]", "{}", json.dumps({**stored, "measured": [{"colour": 1}]})):
        file.write_text(damaged)
        assert read_choice(tmp_path, "abc", None) is None
    file.write_text(json.dumps(stored))
    assert read_choice(tmp_path, "abc", None) is not None


def test_a_cache_that_cannot_be_written_costs_the_next_start_alone(tmp_path: Path, rates: Any) -> None:
    (tmp_path / "file").touch()
    assert chosen(tmp_path / "file" / "cache", rates) == TORCH


def test_a_choice_is_of_all_that_decides_how_fast_a_back_end_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home is moved to another machine, or a library is replaced: what was measured there says nothing."""
    machine: dict[str, Any] = {"thread_budget": 2, "_processor": "one", "versions": {"torch": "1"}}
    for name in machine:
        monkeypatch.setattr(load, name, lambda *_, name=name: machine[name])
    before = load._file(tmp_path, "weights", "float32")
    assert load._file(tmp_path, "weights", "float32") == before
    assert load._file(tmp_path, "others", "float32") != before
    assert load._file(tmp_path, "weights", None) != before
    for name, other in {"thread_budget": 3, "_processor": "another", "versions": {"torch": "2"}}.items():
        with monkeypatch.context() as patch:
            patch.setitem(machine, name, other)
            assert load._file(tmp_path, "weights", "float32") != before, name


def test_rates_are_of_the_best_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process slows one down now and then, and nothing speeds one up."""
    took = iter([*[0.5] * 16, 8.0, *[0.25] * 16, 4.0, *[1.0] * 16, 2.0])
    monkeypatch.setattr(load, "_seconds", lambda encoder, texts: next(took))
    rates: Any = load._rates({TORCH: Encoder()})  # type: ignore[dict-item]
    assert rates == {TORCH: (4.0, 16.0)}
