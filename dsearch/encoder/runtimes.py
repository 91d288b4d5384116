"""Exported encoders as functions: arrays of tokens in, arrays of sentences out. One budget of threads.

Neither library spins while it waits, and both take what `dsearch.threads` allows: by itself each would take
every core beside torch and FAISS.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.threads import thread_budget

Tokens = Mapping[str, Int64[np.ndarray, "texts tokens"]]
Run = Callable[[Tokens], Float32[np.ndarray, "texts encoder_dim"]]


def onnx_session(model: Path) -> Run:
    """A model of ONNX, run by onnxruntime; many threads may call it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_budget()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def run(tokens: Tokens) -> Float32[np.ndarray, "texts encoder_dim"]:
        return np.asarray(session.run(None, dict(tokens))[0], np.float32)

    return run


def openvino_session(model: Path, precision: str) -> Run:
    """A model of OpenVINO, compiled for this processor; many threads may call it.

    Args:
        model: the .xml of its two files.
        precision: "f32" or "bf16", in which it computes.
    """
    openvino = import_openvino()
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": thread_budget(),
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # other processes are on this machine, and two of us would share a core
    }
    compiled = openvino.Core().compile_model(str(model), "CPU", options)
    requests = threading.local()  # an infer request holds the arrays of one call

    def run(tokens: Tokens) -> Float32[np.ndarray, "texts encoder_dim"]:
        if not hasattr(requests, "one"):
            requests.one = compiled.create_infer_request()
        return np.array(requests.one.infer(dict(tokens))[compiled.output(0)], np.float32)

    return run


def import_openvino() -> Any:
    """The package, without what it brings to report each import and conversion to its makers over the net."""
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as if not installed
    import openvino

    return openvino


def openvino_knows(capability: str) -> bool:
    """Whether this processor has what OpenVINO calls so: "BF16", "INT8"."""
    openvino = import_openvino()
    return capability in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
