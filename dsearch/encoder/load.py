"""Load an encoder by name or by the settings of a home; export it first where that is needed.

`auto` is OpenVINO where it is installed and agrees with torch, else torch. The export is made once on a
machine, by a process in the background (`prepare`); torch encodes until then. torch is loaded only where it
encodes or exports.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.encoder.automatic import AutomaticEncoder, load_automatic, outcome, record_problem
from dsearch.encoder.backends import (
    AUTO,
    FLOAT,
    OPENVINO,
    TORCH,
    Backend,
    best_dtype,
    openvino_installed,
    require_openvino,
)
from dsearch.encoder.compiled import CompiledEncoder, Exporting
from dsearch.encoder.export_cache import checked_record, export_folder, open_export, states_problem_of
from dsearch.encoder.text_encoder import CPU_BATCH, TextEncoder, default_batch_size
from dsearch.encoder.trained import TrainedChange, forget_earlier, trained_request
from dsearch.encoder.weights import DEFAULT_ENCODER, Weights, find_weights, saved_prompts, unused_prompts
from dsearch.errors import EncoderUnavailable, InvalidRequest

if TYPE_CHECKING:
    from dsearch.config import Settings


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


def exported(request: Exporting, dtype: str, *, batch_size: int = CPU_BATCH) -> CompiledEncoder:
    """The encoder as OpenVINO runs it: from the cache, or exported into it first.

    Raises:
        MissingExtra: OpenVINO is not installed.
        InvalidRequest: a model that cannot be exported.
        EncoderUnavailable: its embeddings are not those of torch, or the cache cannot be written.
    """
    require_openvino()
    record = ensure_exported(request)
    agreement = record["agreement"].get(dtype)
    if agreement is None:
        raise EncoderUnavailable(
            f"encoder {request.name!r}: {OPENVINO} does not compute in {dtype} on this processor; use "
            "float32 or --backend torch"
        )
    if not agreement["agrees"]:
        raise EncoderUnavailable(
            f"encoder {request.name!r}: {Backend(OPENVINO, dtype)} gives embeddings whose cosine with those "
            f"of torch is {agreement['mean']:.4f} in the mean; use --backend torch"
        )
    return open_export(request, dtype, export_folder(request), record, batch_size)


def ensure_exported(request: Exporting) -> dict[str, Any]:
    """Export into the cache unless that was done before; return the description of the export.

    Raises:
        As `exported`, but for embeddings that do not agree, which the description tells.
    """
    folder = export_folder(request)
    record = checked_record(folder)
    if record is not None:
        return record
    require_openvino()
    from dsearch.encoder.export import export  # torch

    return export(request, folder)


def prepare(name: str, cache: str, trained: str | None = None) -> None:
    """Export an encoder, in the process that `Preparation` starts; a problem is printed as JSON.

    Args:
        name: name of the encoder.
        cache: folder of exports.
        trained: a trained change of it, as `TrainedChange.to_json` gives it.
    """
    if trained is None:
        request = Exporting(name, find_weights(name), None, Path(cache), partial(by_torch, name))
    else:
        request = trained_request(TrainedChange.from_json(trained), Path(cache))
    try:
        ensure_exported(request)
        if trained is not None:
            forget_earlier(request)
    except InvalidRequest as error:  # of this model: the same next time
        record_problem(request, str(error))
        print(json.dumps({"problem": str(error)}))
    except Exception as error:
        print(json.dumps({"problem": f"{type(error).__name__}: {error}"}))


CACHE_NAME = ".encoders"  # in a home, where the user has no folder for caches


@dataclass(frozen=True, slots=True)
class EncoderInUse:
    """Back end that runs an encoder.

    Attributes:
        name: the user's name of the encoder.
        runs_by: back end and precision.
        note: reason why it is torch, or why token states are torch's, where another was to be expected.
        prompts: sentence that names prompts of the model that are not used.
    """

    name: str
    runs_by: str
    note: str | None = None
    prompts: str | None = None


@dataclass(frozen=True, slots=True)
class EncoderSource:
    """Loads an encoder when it is called, as the command line, the server and `dsearch.open` do.

    Attributes:
        name: name or folder of the encoder.
        cache: folder of exported models.
        backend: as for `load_encoder`.
        dtype: as for `load_encoder`.
        device: device of the encoder.
        tell: receives messages about exporting.
    """

    name: str
    cache: Path
    backend: str = AUTO
    dtype: str | None = None
    device: str = "cpu"
    tell: Callable[[str], None] | None = None

    @classmethod
    def of(
        cls, settings: Settings, *, name: str | None = None, tell: Callable[[str], None] | None = None
    ) -> EncoderSource:
        """Return the source by the settings; `name` in place of the encoder that they name."""
        return cls(
            name or settings.encoder,
            encoder_cache(settings.home, settings.cache),
            settings.backend,
            settings.dtype,
            settings.device,
            tell,
        )

    def __call__(self) -> TextEncoder:
        """Load it; see `load_encoder` for errors."""
        return load_encoder(
            self.name,
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            cache=self.cache,
            tell=self.tell,
        )

    def in_use(self) -> EncoderInUse:
        """Return the back end that a start takes now; nothing is loaded.

        Raises:
            EncoderUnavailable: no weights.
        """
        weights = find_weights(self.name)
        runs_by, note = self._runs_by(weights)
        prompts = {} if weights.packed is not None else saved_prompts(weights.folder)
        return EncoderInUse(self.name, runs_by, note, unused_prompts(prompts))

    def _runs_by(self, weights: Weights) -> tuple[str, str | None]:
        """Back end with precision, and `EncoderInUse.note`."""
        if self.backend != AUTO:
            return str(Backend(self.backend, self.dtype or best_dtype(self.backend))), None
        in_torch = str(Backend(TORCH, self.dtype or FLOAT))
        if self.device != "cpu":
            return in_torch, None
        if not openvino_installed():
            return in_torch, f"{OPENVINO} is not installed"
        request = Exporting(self.name, weights, None, self.cache, partial(by_torch, self.name))
        cached = outcome(request, self.dtype)
        if cached.dtype is not None:
            return str(Backend(OPENVINO, cached.dtype)), states_problem_of(request, cached.dtype)
        return in_torch, cached.problem or f"its first use prepares {OPENVINO} in the background"


def encoder_in_use(encoder: TextEncoder | None) -> EncoderInUse | None:
    """Return the back end of a loaded encoder; None for none."""
    if encoder is None:
        return None
    name, prompts = encoder.identity.name, prompts_of(encoder)
    if isinstance(encoder, AutomaticEncoder):
        return EncoderInUse(name, str(encoder.runs_by), encoder.note or encoder.states_problem, prompts)
    return EncoderInUse(name, f"{encoder.identity.backend} {encoder.identity.dtype}", prompts=prompts)


def prompts_of(encoder: TextEncoder) -> str | None:
    """Return the sentence that names prompts of a loaded encoder that are not used; None without such."""
    return unused_prompts(getattr(encoder, "prompts", None))


def machine_cache() -> Path:
    """Return the folder by the custom of the system; it need not exist.

    Raises:
        RuntimeError: the user has no home folder.
    """
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "dsearch" / "encoders"


def encoder_cache(home: Path, chosen: Path | None = None) -> Path:
    """Return the folder to use: the one of the settings, that of the machine, or one in the home.

    It need not exist, and none is made.

    Args:
        home: folder of collections.
        chosen: the setting `cache`; None where it is unset.
    """
    if chosen is not None:
        return chosen
    try:
        folder = machine_cache()
        present = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    except (OSError, RuntimeError, StopIteration):  # a service user without a home folder
        return home / CACHE_NAME
    return folder if present == folder or os.access(present, os.W_OK) else home / CACHE_NAME
