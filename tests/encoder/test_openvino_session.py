"""Exported models by OpenVINO: the options that it is given, by a library of a few lines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.encoder import backends as module
from dsearch.encoder.backends import LONE_WIDTHS, openvino_knows, openvino_session


@pytest.fixture(autouse=True)
def _three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "thread_budget", lambda: 3)


def tokens(texts: int, width: int) -> dict[str, np.ndarray]:
    return {name: np.ones((texts, width), np.int64) for name in ("input_ids", "attention_mask")}


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    seen = SimpleNamespace(compiled=[], shapes=[], infers=0, properties=[])

    class Model:
        shape: Any = None

        @property
        def inputs(self) -> list[Any]:
            names = ("input_ids", "attention_mask")
            return [SimpleNamespace(get_any_name=lambda name=name: name) for name in names]

        def clone(self) -> Any:
            return Model()

        def reshape(self, shape: Any) -> None:
            self.shape = shape

    class Request:
        def infer(self, arrays: dict[str, np.ndarray], share_outputs: bool) -> list[np.ndarray]:
            assert share_outputs
            seen.infers += 1
            return [np.zeros((1, 2)), np.ones((1, 4, 2))]

    class Core:
        def read_model(self, path: str) -> Model:
            seen.path = path
            return Model()

        def compile_model(self, model: Model, device: str, options: dict[str, Any]) -> Any:
            seen.compiled.append((model.shape, device, options))
            return SimpleNamespace(create_infer_request=Request)

        def get_property(self, device: str, name: str) -> list[str]:
            seen.properties.append((device, name))
            return ["FP32", "BF16"]

    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=Core))
    monkeypatch.setattr(module, "_core", None)  # one is kept for all models
    return seen


def test_openvino_keeps_to_the_thread_budget(openvino: SimpleNamespace) -> None:
    run = openvino_session(Path("folder/model.xml"), "bf16")
    assert openvino.path == "folder/model.xml"
    assert openvino.compiled == []  # when it is first used
    run(tokens(2, 7))
    ((shape, device, options),) = openvino.compiled
    assert (shape, device) == (None, "CPU")
    assert options == {
        "INFERENCE_NUM_THREADS": 3,
        "INFERENCE_PRECISION_HINT": "bf16",
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }


def test_openvino_has_a_model_of_its_own_for_each_width_of_a_lone_text(openvino: SimpleNamespace) -> None:
    run = openvino_session(Path("model.xml"), "f32")
    for _ in range(2):
        for width in (16, 32, 64):
            run(tokens(1, width))
        run(tokens(1, 17))
        run(tokens(2, 16))
    assert LONE_WIDTHS == (16, 32, 64)
    shapes = [shape for shape, *_ in openvino.compiled]
    fixed = [{name: [1, width] for name in ("input_ids", "attention_mask")} for width in LONE_WIDTHS]
    assert shapes == [*fixed, None]
    assert openvino.infers == 10


def test_openvino_gives_states_where_they_are_wanted(openvino: SimpleNamespace) -> None:
    run = openvino_session(Path("model.xml"), "f32")
    assert run(tokens(1, 4)).states is None
    both = run(tokens(1, 4), states=True)
    assert both.states is not None
    assert (both.embeddings.shape, both.states.shape) == ((1, 2), (1, 4, 2))
    assert both.states.dtype == np.float32


def test_one_core_is_kept_for_all_models(openvino: SimpleNamespace) -> None:
    openvino_session(Path("one.xml"), "f32")
    core = module._core
    openvino_session(Path("two.xml"), "f32")
    assert openvino_knows("BF16")
    assert module._core is core is not None


def test_openvino_says_what_a_processor_can(openvino: SimpleNamespace) -> None:
    assert openvino_knows("BF16")
    assert not openvino_knows("FP64")
    assert openvino.properties[0] == ("CPU", "OPTIMIZATION_CAPABILITIES")
