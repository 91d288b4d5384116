"""`EncoderSource`: the encoder of a home by the settings, for all that open one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dsearch.encoder.automatic.encoder import AutomaticEncoder
from dsearch.encoder.automatic.outcome import outcome
from dsearch.encoder.backends import AUTO, FLOAT, OPENVINO, TORCH, Backend, best_dtype, openvino_installed
from dsearch.encoder.exported.cache import states_problem_of
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.load import by_torch, load_encoder
from dsearch.encoder.model_settings import saved_prompts, unused_prompts
from dsearch.encoder.text_encoder import TextEncoder
from dsearch.encoder.weights import Weights, find_weights

if TYPE_CHECKING:
    from dsearch.config import Settings

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
