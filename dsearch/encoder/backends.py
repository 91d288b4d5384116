"""Back ends that run an encoder, and their precisions: torch and OpenVINO."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from dsearch.errors import InvalidRequest, MissingExtra

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
        from dsearch.encoder.exported.runtimes import openvino_knows

        return HALF if openvino_knows("BF16") else FLOAT
    return FLOAT
