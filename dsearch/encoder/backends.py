"""Back ends that run an encoder, and their precisions: torch, onnxruntime, OpenVINO."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from dsearch.errors import InvalidRequest, MissingExtra

TORCH, ONNX, OPENVINO, AUTO = "torch", "onnx", "openvino", "auto"
FLOAT, HALF, INT8 = "float32", "bfloat16", "int8"

PRECISIONS = {TORCH: (FLOAT, HALF), ONNX: (FLOAT, INT8), OPENVINO: (FLOAT, HALF, INT8)}
CLOSE = (FLOAT, HALF)  # equal embeddings up to a cosine of .9999, on any back end

# Packages needed to run an exported model, and to export one.
_TO_RUN = {TORCH: (), ONNX: ("onnxruntime",), OPENVINO: ("openvino",)}
_TO_EXPORT = {TORCH: (), ONNX: ("onnx", "onnxscript"), OPENVINO: ()}


@dataclass(frozen=True, slots=True)
class Backend:
    """A library and the precision in which it computes.

    Attributes:
        name: "torch", "onnx" or "openvino".
        dtype: "float32", "bfloat16" or "int8".
    """

    name: str
    dtype: str

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise InvalidRequest(f"backend={self.name!r}; use {', '.join(PRECISIONS)} or {AUTO}")
        if self.dtype not in PRECISIONS[self.name]:
            allowed = " or ".join(PRECISIONS[self.name])
            raise InvalidRequest(f"dtype={self.dtype!r}; back end {self.name} takes {allowed}")

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}"

    def missing(self, *, exporting: bool = False) -> list[str]:
        """Return the required packages that are not installed, to run or also to export."""
        needed = list(_TO_RUN[self.name]) + (list(_TO_EXPORT[self.name]) if exporting else [])
        if exporting and (self.name, self.dtype) == (OPENVINO, INT8):
            needed.append("nncf")
        return [package for package in needed if importlib.util.find_spec(package) is None]

    def require_installed(self, *, exporting: bool = False) -> None:
        """Raise MissingExtra if required packages are missing; the message names the extra."""
        missing = self.missing(exporting=exporting)
        if missing == ["nncf"]:
            raise MissingExtra(
                f"back end {self} needs nncf to quantise, which is not installed; run pip install nncf, or "
                "take another precision (dtype bfloat16 or float32)"
            )
        if missing:
            raise MissingExtra(
                f"back end {self} needs {', '.join(missing)}, which is not installed; run "
                f"pip install 'dsearch[{self.name}]', or use --backend torch"
            )


def installed() -> list[str]:
    """Return the installed back ends besides torch that can export."""
    return [name for name in (ONNX, OPENVINO) if not Backend(name, FLOAT).missing(exporting=True)]


def best_dtype(name: str) -> str:
    """Default precision of a back end: close to float32, and fast on this machine.

    OpenVINO computes in bfloat16 where the processor does; everything else in float32.
    """
    if name == OPENVINO and importlib.util.find_spec("openvino") is not None:
        from dsearch.encoder.exported.runtimes import openvino_knows

        return HALF if openvino_knows("BF16") else FLOAT
    return FLOAT
