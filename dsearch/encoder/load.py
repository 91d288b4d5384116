"""`load_encoder`: load an encoder by name, on a named back end, a measured one, or the one of `auto`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

from dsearch.encoder.automatic.encoder import load_automatic
from dsearch.encoder.automatic.outcome import preferred
from dsearch.encoder.backends import AUTO, FLOAT, HALF, INT8, TORCH, Backend, best_dtype, installed
from dsearch.encoder.choice import BackendChoice, choose, known_in, read_choice
from dsearch.encoder.exported.making import exported
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.text_encoder import TextEncoder
from dsearch.encoder.weights import DEFAULT_ENCODER, find_weights
from dsearch.errors import DsearchError, InvalidRequest


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    backend: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    cache: Path | None = None,
    max_tokens: int | None = None,
    batch_size: int = 32,
    tell: Callable[[str], None] | None = None,
) -> TextEncoder:
    """Load the encoder called `name`.

    Args:
        name: a sentence-transformers model, or the folder of one.
        backend: "torch", "onnx", "openvino"; "auto" for what `dsearch backends` has measured, else an
            exported model, which a process in the background makes at the first use; None for what was
            measured, else torch.
        dtype: "float32", "bfloat16" or "int8"; what the back end does best when None, close to float32.
        device: device of the encoder; only torch supports others than "cpu".
        cache: folder of exported models and of what was chosen; needed for every back end but torch.
        max_tokens: cut longer texts; the model's own limit when None.
        batch_size: texts encoded at a time.
        tell: callback for messages about measuring and exporting.

    Raises:
        EncoderUnavailable: no weights, or embeddings that are not those of torch.
        InvalidRequest: an unknown back end or precision, or one that the other does not go with.
        MissingExtra: the back end is not installed.
    """
    if device != "cpu":
        from dsearch.encoder.encoder import check_device

        check_device(device)
    if backend not in (None, AUTO):
        chosen = Backend(backend, dtype or best_dtype(backend))
    elif dtype not in (None, FLOAT, HALF, INT8):
        raise InvalidRequest(f"dtype={dtype!r}; use {FLOAT}, {HALF} or {INT8}")
    else:
        chosen = None
    if chosen is not None and chosen.name != TORCH and device != "cpu":
        raise InvalidRequest(f"backend={chosen.name!r} runs on the CPU, not on {device}; use --backend torch")

    options: dict[str, Any] = {"device": device, "max_tokens": max_tokens, "batch_size": batch_size}
    loaded = once(lambda dtype: by_torch(name, dtype=dtype, **options))
    in_torch = partial(loaded, FLOAT)

    def by(backend: Backend) -> TextEncoder:
        if backend.name == TORCH:
            return loaded(backend.dtype)
        if cache is None:
            raise InvalidRequest(f"backend={backend.name!r} needs a folder for what is exported; give cache")
        backend.require_installed()
        exporting = Exporting(name, find_weights(name), max_tokens, cache, in_torch)
        return exported(exporting, backend, batch_size=batch_size)

    if chosen is not None:
        return by(chosen)
    automatic = backend == AUTO and device == "cpu" and dtype != INT8 and preferred() is not None
    if device == "cpu" and cache is not None and installed() and (dtype == INT8 or known_in(cache)):
        sha256 = find_weights(name).sha256
        choice = read_choice(cache, sha256, dtype)
        if choice is None and backend == AUTO and dtype == INT8:
            choice = choose(cache, sha256, dtype, by, tell)
        if choice is not None:
            try:
                return by(choice.backend)
            except DsearchError as error:
                automatic = False
                if tell is not None:
                    tell(f"{error}; the encoder runs by torch")
    if automatic and cache is not None:
        exporting = Exporting(name, find_weights(name), max_tokens, cache, in_torch)
        return load_automatic(
            exporting, partial(loaded, dtype or FLOAT), dtype, batch_size, tell or (lambda _: None)
        )
    if dtype == INT8:
        raise InvalidRequest(
            "dtype='int8' is of the back ends onnx and openvino; use --backend onnx, or auto with one of "
            "them installed"
        )
    return by(Backend(TORCH, dtype or FLOAT))


def by_torch(name: str, **options: Any) -> Any:
    """Load the torch encoder; see `Encoder.load`.

    The result has no annotation: tests check those, and put an encoder of their own in its place.
    """
    from dsearch.encoder.encoder import Encoder

    return Encoder.load(name, **options)


def choice_of(
    name: str,
    cache: Path,
    *,
    dtype: str | None = None,
    measure: bool = False,
    tell: Callable[[str], None] | None = None,
) -> BackendChoice | None:
    """Choice of `auto` on this machine; None if there is no measurement yet and `measure` is not set.

    Raises:
        EncoderUnavailable: no weights.
    """
    sha256 = find_weights(name).sha256
    if measure:

        def by(backend: Backend) -> TextEncoder:
            return load_encoder(name, backend=backend.name, dtype=backend.dtype, cache=cache)

        return choose(cache, sha256, dtype, by, tell)
    return read_choice(cache, sha256, dtype)
