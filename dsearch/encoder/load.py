"""Load an encoder by name, on a named back end, or on that of `auto`.

`auto` is OpenVINO where it is installed and agrees with torch, else torch. The export is made once on a
machine, by a process in the background; torch encodes until then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

from dsearch.encoder.automatic.encoder import load_automatic
from dsearch.encoder.backends import (
    AUTO,
    FLOAT,
    TORCH,
    Backend,
    best_dtype,
    openvino_installed,
    require_openvino,
)
from dsearch.encoder.exported.making import exported
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.text_encoder import TextEncoder, default_batch_size
from dsearch.encoder.weights import DEFAULT_ENCODER, find_weights
from dsearch.errors import InvalidRequest


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    backend: str = TORCH,
    dtype: str | None = None,
    device: str = "cpu",
    cache: Path | None = None,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> TextEncoder:
    """Load the encoder called `name`.

    Args:
        name: a sentence-transformers model, or the folder of one.
        backend: "torch" or "openvino"; "auto" for OpenVINO where it is installed, by an export that a process
            in the background makes at the first use, and torch until then.
        dtype: "float32" or "bfloat16"; the faster one of the back end on this machine when None.
        device: device of the encoder; only torch supports others than "cpu".
        cache: folder of exported models; needed for OpenVINO.
        max_tokens: cut longer texts; the model's own limit when None.
        batch_size: texts encoded at a time; 256 on a CUDA GPU and 32 elsewhere when None.
        tell: callback for messages about exporting.

    Raises:
        EncoderUnavailable: no weights, or embeddings that are not those of torch.
        InvalidRequest: an unknown back end, precision or device, or a back end that does not go with the
            device.
        MissingExtra: the back end is not installed.
    """
    if device != "cpu":
        from dsearch.encoder.encoder import check_device

        check_device(device)
    by = TORCH if backend == AUTO else backend
    chosen = Backend(by, dtype or best_dtype(by))
    if chosen.name != TORCH and device != "cpu":
        raise InvalidRequest(f"backend={chosen.name!r} runs on the CPU, not on {device}; use --backend torch")
    batch_size = default_batch_size(device) if batch_size is None else batch_size
    options: dict[str, Any] = {"device": device, "max_tokens": max_tokens, "batch_size": batch_size}
    in_torch = once(lambda dtype: by_torch(name, dtype=dtype, **options))
    automatic = backend == AUTO and device == "cpu" and cache is not None and openvino_installed()
    if chosen.name == TORCH and not automatic:
        return in_torch(chosen.dtype)
    if cache is None:
        raise InvalidRequest(f"backend={chosen.name!r} needs a folder for what is exported; give cache")
    if not automatic:
        require_openvino()  # before the weights are looked for
    request = Exporting(name, find_weights(name), max_tokens, cache, partial(in_torch, FLOAT))
    if not automatic:
        return exported(request, chosen.dtype, batch_size=batch_size)
    return load_automatic(
        request, partial(in_torch, chosen.dtype), dtype, batch_size, tell or (lambda _: None)
    )


def by_torch(name: str, **options: Any) -> Any:
    """Load the torch encoder; see `Encoder.load`.

    The result has no annotation: tests check those, and put an encoder of their own in its place.
    """
    from dsearch.encoder.encoder import Encoder

    return Encoder.load(name, **options)
