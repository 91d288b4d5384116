"""Back ends that run an encoder, torch and OpenVINO: their precisions, and sessions of OpenVINO.

OpenVINO is set to use the threads that `dsearch.threads` allows: by default it takes every core, in
competition with torch and FAISS.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import InvalidRequest, MissingExtra
from dsearch.threads import thread_budget

TORCH, OPENVINO, AUTO = "torch", "openvino", "auto"
FLOAT, HALF = "float32", "bfloat16"

BACKENDS = (TORCH, OPENVINO)
DTYPES = (FLOAT, HALF)  # equal embeddings up to a cosine of .9999, on any back end


@dataclass(frozen=True, slots=True)
class Backend:
    """A library and the precision in which it computes.

    Attributes:
        name: "torch" or "openvino".
        dtype: "float32" or "bfloat16".
    """

    name: str
    dtype: str

    def __post_init__(self) -> None:
        if self.name not in BACKENDS:
            raise InvalidRequest(f"backend={self.name!r}; use {', '.join(BACKENDS)} or {AUTO}")
        if self.dtype not in DTYPES:
            raise InvalidRequest(f"dtype={self.dtype!r}; use {' or '.join(DTYPES)}")

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}"


def openvino_installed() -> bool:
    """Return True if OpenVINO can be imported."""
    return importlib.util.find_spec("openvino") is not None


def require_openvino() -> None:
    """Raise MissingExtra without OpenVINO; the message names the extra."""
    if not openvino_installed():
        raise MissingExtra(
            "back end openvino is not installed; run pip install 'dsearch[openvino]', or use --backend torch"
        )


def best_dtype(name: str) -> str:
    """Default precision of a back end: close to float32, and fast on this machine.

    OpenVINO computes in bfloat16 where the processor does; everything else in float32.
    """
    if name == OPENVINO and openvino_installed():
        return HALF if openvino_knows("BF16") else FLOAT
    return FLOAT


Tokens = Mapping[str, Int64[np.ndarray, "texts tokens"]]


class Outputs(NamedTuple):
    """Outputs of an exported model.

    Attributes:
        embeddings: of texts, not yet of unit length.
        states: of their tokens, padding included; None where they were not wanted.
    """

    embeddings: Float32[np.ndarray, "texts encoder_dim"]
    states: Float32[np.ndarray, "texts tokens encoder_dim"] | None = None


class Run(Protocol):
    """An exported model."""

    def __call__(self, tokens: Tokens, *, states: bool = False) -> Outputs:
        """Run it; `states` for the token states too, of a model that has them."""
        ...


# Widths of a text that comes alone for which OpenVINO keeps a model of its own. One made for a single shape
# takes three quarters of the time at 16 tokens and .86 at 64, and 35 MB each with all-MiniLM-L6-v2: what it
# computes is the same to the last bit.
LONE_WIDTHS = (16, 32, 64)

_core: Any = None
_making = threading.Lock()


def openvino_session(model: Path, precision: str) -> Run:
    """A model of OpenVINO, compiled for this processor; many threads may call it.

    It is compiled for any shape when several texts first come together, and for each of `LONE_WIDTHS` when a
    single text first has that many tokens; each takes a quarter of a second then.

    Args:
        model: the .xml of its two files.
        precision: "f32" or "bf16", in which it computes.
    """
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": thread_budget(),
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # other processes are on this machine, and two of us would share a core
    }
    core = _openvino_core()
    read = core.read_model(str(model))
    of_width: dict[int | None, Any] = {}  # None: of any shape
    compiling = threading.Lock()
    requests = threading.local()  # an infer request holds the arrays of one call

    def compiled(width: int | None) -> Any:
        with compiling:
            if width not in of_width:
                chosen = read
                if width is not None:
                    chosen = read.clone()  # shares the weights
                    chosen.reshape({tensor.get_any_name(): [1, width] for tensor in chosen.inputs})
                of_width[width] = core.compile_model(chosen, "CPU", options)
            return of_width[width]

    def run(tokens: Tokens, *, states: bool = False) -> Outputs:
        texts, width = next(iter(tokens.values())).shape
        shape = width if texts == 1 and width in LONE_WIDTHS else None
        mine = requests.__dict__.setdefault("by_shape", {})
        if shape not in mine:
            mine[shape] = compiled(shape).create_infer_request()
        arrays = mine[shape].infer(dict(tokens), share_outputs=True)  # copied here, what is wanted
        return Outputs(*(np.array(arrays[place], np.float32) for place in range(1 + states)))

    return run


def import_openvino() -> Any:
    """Import the package with its telemetry of imports and conversions disabled."""
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as if not installed
    import openvino

    return openvino


def openvino_knows(capability: str) -> bool:
    """True if this processor has a capability that OpenVINO names, such as "BF16" or "INT8"."""
    return capability in _openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _openvino_core() -> Any:
    """The one core of this process, kept until it ends.

    A core gives the thread that makes it another stack for signals, and unmaps that stack when it is dropped.
    Dropped in another thread, as a superseded encoder may be, it would leave the first one without: the next
    signal, such as Ctrl-C, would end the process by a segmentation fault.
    """
    global _core
    with _making:
        if _core is None:
            _core = import_openvino().Core()
        return _core
