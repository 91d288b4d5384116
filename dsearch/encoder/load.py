"""Load an encoder by name, on a named back end, a measured one, or the one of `auto`.

`auto` is the fastest installed back end that agrees with torch, measured once and stored.

    <cache>/choice-<key>.json    measurements on this machine, and the choice

The key is a digest of the weights, the versions, the processor and the thread budget. Measuring takes the
time of exporting the model and encoding some hundred texts, so it runs only on request (`--backend auto`,
`dsearch backends`). Later starts use its result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

from dsearch.encoder.automatic.agreement import documents, queries
from dsearch.encoder.automatic.encoder import load_automatic
from dsearch.encoder.automatic.outcome import preferred
from dsearch.encoder.backends import (
    AUTO,
    CLOSE,
    FLOAT,
    HALF,
    INT8,
    OPENVINO,
    TORCH,
    Backend,
    best_dtype,
    installed,
)
from dsearch.encoder.exported.cache import versions
from dsearch.encoder.exported.making import exported
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.text_encoder import TextEncoder, default_batch_size
from dsearch.encoder.weights import DEFAULT_ENCODER, find_weights
from dsearch.errors import DsearchError, InvalidRequest
from dsearch.threads import thread_budget

GAIN = 1.1  # minimum gain over torch in float32, which training uses
_ROUNDS = 3
_QUERIES = 16  # timed one by one
_DOCUMENTS = 32
_LIBRARIES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "onnx", "nncf")


@dataclass(frozen=True, slots=True)
class MeasuredBackend:
    """Measurement of one back end on this machine.

    Attributes:
        name: name of the back end.
        dtype: its precision.
        queries_per_s: rate of queries encoded one at a time.
        documents_per_s: rate of documents sorted by length, in batches.
        problem: reason why it cannot be used; the rates are 0 then.
    """

    name: str
    dtype: str
    queries_per_s: float = 0.0
    documents_per_s: float = 0.0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Result of choosing a back end for `auto`.

    Attributes:
        backend: chosen back end.
        measured: measurements of all candidates.
    """

    backend: Backend
    measured: tuple[MeasuredBackend, ...]


def candidates(dtype: str | None = None) -> list[Backend]:
    """Return the back ends that `auto` tries; torch in float32 is the first.

    Args:
        dtype: required precision; when None, those with embeddings close to float32.
    """
    tried = [Backend(TORCH, FLOAT)]
    if dtype == HALF or (dtype is None and best_dtype(OPENVINO) == HALF):
        tried.append(Backend(TORCH, HALF))
    for name in installed():
        wanted = {FLOAT, best_dtype(name)} if dtype is None else {dtype}
        tried += [Backend(name, kind) for kind in (*CLOSE, INT8) if kind in wanted and _takes(name, kind)]
    return tried


def known_in(cache: Path) -> bool:
    """True if the cache has a choice for any encoder; a cheap check."""
    return any(cache.glob("choice-*.json"))


def read_choice(cache: Path, weights_sha256: str, dtype: str | None) -> BackendChoice | None:
    """Read a previous choice; None if there is none for this encoder, version and processor."""
    try:
        stored = json.loads(_file(cache, weights_sha256, dtype).read_text(encoding="utf-8"))
        measured = tuple(MeasuredBackend(**entry) for entry in stored["measured"])
        backend = Backend(**stored["backend"])
    except (OSError, ValueError, KeyError, TypeError, DsearchError):
        return None
    return None if backend.missing() else BackendChoice(backend, measured)


def choose(
    cache: Path,
    weights_sha256: str,
    dtype: str | None,
    load: Callable[[Backend], TextEncoder],
    tell: Callable[[str], None] | None = None,
) -> BackendChoice:
    """Measure the candidates, store the fastest, and return it.

    A candidate that cannot be exported, does not agree, or fails is omitted with its reason; without any,
    torch is chosen. The fastest has the largest geometric mean of the two rates.

    Args:
        cache: folder of exports and choices.
        weights_sha256: digest of the encoder's weights.
        dtype: as for `candidates`.
        load: function that loads the encoder on a back end, or raises.
        tell: callback for progress messages.
    """
    tell = tell or (lambda _: None)
    encoders: dict[Backend, TextEncoder] = {}
    problems: dict[Backend, str] = {}
    for backend in candidates(dtype):
        tell(f"back end {backend}: exporting, or loading what was exported")
        try:
            encoders[backend] = load(backend)
            encoders[backend].encode_documents(documents()[:_DOCUMENTS])  # warm-up: compiles the shapes
        except Exception as error:  # libraries fail in many ways
            encoders.pop(backend, None)
            problems[backend] = f"{type(error).__name__}: {error}"
    rates = _rates(encoders)
    measured = [MeasuredBackend(backend.name, backend.dtype, *rates[backend]) for backend in rates]
    measured += [MeasuredBackend(failed.name, failed.dtype, problem=why) for failed, why in problems.items()]
    chosen = _fastest(rates)
    choice = BackendChoice(chosen, tuple(measured))
    with contextlib.suppress(OSError):  # without a writable cache the next start measures again
        cache.mkdir(parents=True, exist_ok=True)
        file = _file(cache, weights_sha256, dtype)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(choice), indent=1), encoding="utf-8")
        unfinished.replace(file)
    tell(f"the encoder runs by {chosen} from now on")
    return choice


def _takes(name: str, dtype: str) -> bool:
    with contextlib.suppress(DsearchError):
        return not Backend(name, dtype).missing(exporting=True)
    return False


def _rates(encoders: dict[Backend, TextEncoder]) -> dict[Backend, tuple[float, float]]:
    """Measure queries and documents a second, in alternating rounds, so that noise affects all alike."""
    short, long = queries()[:_QUERIES], documents()[:_DOCUMENTS]
    took: dict[Backend, list[tuple[float, float]]] = {backend: [] for backend in encoders}
    for _ in range(_ROUNDS):
        for backend, encoder in encoders.items():
            each = statistics.median(_seconds(encoder, [query]) for query in short)
            took[backend].append((each, _seconds(encoder, long)))
    return {
        backend: (1 / min(query_s for query_s, _ in times), len(long) / min(all for _, all in times))
        for backend, times in took.items()
    }


def _seconds(encoder: TextEncoder, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    if len(texts) == 1:
        encoder.encode_queries(texts)
    else:
        encoder.encode_documents(texts)
    return time.perf_counter() - started


def _fastest(rates: dict[Backend, tuple[float, float]]) -> Backend:
    torch_alone = Backend(TORCH, FLOAT)
    if not rates:
        return torch_alone
    best = max(rates, key=lambda backend: rates[backend][0] * rates[backend][1])
    if torch_alone in rates:
        gained = [new / old for new, old in zip(rates[best], rates[torch_alone], strict=True)]
        if (gained[0] * gained[1]) ** 0.5 < GAIN:
            return torch_alone
    return best


def _file(cache: Path, weights_sha256: str, dtype: str | None) -> Path:
    parts = {
        "weights": weights_sha256,
        "dtype": dtype,
        "versions": versions(*_LIBRARIES),
        "processor": _processor(),
        "threads": thread_budget(),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return cache / f"choice-{key}.json"


def _processor() -> str:
    """Processor and its capabilities, because a home may be moved to another machine."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
    return f"{platform.machine()} {platform.processor()}"


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    backend: str | None = None,
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
        backend: "torch", "onnx", "openvino"; "auto" for what `dsearch backends` has measured, else an
            exported model, which a process in the background makes at the first use; None for what was
            measured, else torch.
        dtype: "float32", "bfloat16" or "int8"; what the back end does best when None, close to float32.
        device: device of the encoder; only torch supports others than "cpu".
        cache: folder of exported models and of what was chosen; needed for every back end but torch.
        max_tokens: cut longer texts; the model's own limit when None.
        batch_size: texts encoded at a time; 256 on a CUDA GPU and 32 elsewhere when None.
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

    batch_size = default_batch_size(device) if batch_size is None else batch_size
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
