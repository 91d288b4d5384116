"""`AutomaticEncoder`: an encoder whose back end changes while it is used.

It begins with torch, while a process at low priority exports the model (`Preparation`). That process outlives
its parent: a command that ends before it leaves the export to the next one. It holds a lock, so that of
several at once one exports and the others find its result. It is a new interpreter, since tracing a model
changes state that encoding threads of this process use.

    <cache>/<export>/export.json       cosines with torch, by precision
    <cache>/<export>.problem.json      reason why there is no export

Both are named by a digest of weights, settings and all versions, so an update of a library tries again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from dsearch.encoder.backends import FLOAT, HALF, OPENVINO, TORCH, Backend, best_dtype
from dsearch.encoder.compiled import CompiledEncoder, Exporting, ExportOrigin
from dsearch.encoder.export_cache import agreement_of, cached_encoder, export_folder
from dsearch.encoder.text_encoder import EncoderIdentity, TextEncoder
from dsearch.encoder.tokens import TextTokens, Vocabulary, WordTokens

if TYPE_CHECKING:
    from torch import Tensor

    from dsearch.encoder.encoder import Encoder
    from dsearch.encoder.text_encoder import Role

_log = logging.getLogger(__name__)


class AutomaticEncoder:
    """`TextEncoder` that runs by torch, and by an exported model from the moment that this is ready.

    Its identity is that of torch in float32 throughout: the embeddings of both agree to a cosine of .9999, so
    a collection that both have encoded is one that torch has encoded, for every release and machine.

    Args:
        current: encoder to begin with.
        note: reason why torch runs it.
        identity: identity to have, of an encoder with a trained change; that of torch in float32 when None.
        origin: how it is exported; None if it is not.
    """

    def __init__(
        self,
        current: Any,
        note: str | None = None,
        *,
        identity: EncoderIdentity | None = None,
        origin: ExportOrigin | None = None,
    ):
        self._current: Encoder | CompiledEncoder = current
        self.note, self.origin = note, origin
        self._preparation: Preparation | None = None
        self._prepare: Callable[[], None] | None = None
        self._identity = identity or replace(current.identity, backend=TORCH, dtype=FLOAT)

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder, by which embeddings are comparable; the same before and after."""
        return self._identity

    @property
    def runs_by(self) -> Backend:
        """Back end that encodes now."""
        return Backend(self._current.identity.backend, self._current.identity.dtype)

    @property
    def states_problem(self) -> str | None:
        """Reason why token states come from torch while an exported model encodes; None where they do not."""
        return self._current.states_problem if isinstance(self._current, CompiledEncoder) else None

    @property
    def reference(self) -> Encoder:
        """The torch encoder, loaded on first use."""
        return self._current.reference if isinstance(self._current, CompiledEncoder) else self._current

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prefixes of texts by name; those of `Role` are used."""
        return self._current.prompts

    @property
    def vocabulary(self) -> Vocabulary:
        """Token ids of the encoder."""
        return self._current.vocabulary

    def prepare(self, request: Exporting, dtype: str | None, batch_size: int, *, again: bool = False) -> None:
        """Start the export in the background; see `Preparation`."""
        preparation = Preparation(request, dtype, batch_size, self.take_over, self.stay)
        preparation.start(again=again)
        self._preparation = preparation

    def to_prepare(
        self, request: Exporting, dtype: str | None, batch_size: int, *, again: bool = False
    ) -> None:
        """Prepare as `prepare` does when `start` is called."""
        self._prepare = partial(self.prepare, request, dtype, batch_size, again=again)

    def start(self) -> None:
        """Start what `to_prepare` was told, once; torch stays where that fails."""
        prepare, self._prepare = self._prepare, None
        if prepare is None:
            return
        try:
            prepare()
        except OSError as error:
            self.stay(_not_kept(error))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the export in the background has ended; True if there is none that runs."""
        return self._preparation is None or self._preparation.wait(timeout_s)

    def take_over(self, encoder: CompiledEncoder) -> None:
        """Encode with this one from now on; a call that runs ends with the one that it began with."""
        self._current, self.note = encoder, None
        _log.info("encoder %s runs by %s from now on", self._identity.name, self.runs_by)

    def stay(self, problem: str) -> None:
        """Keep torch, and say why."""
        self.note = problem
        _log.warning("the encoder stays with torch: %s", problem)

    def encode_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of queries."""
        return self._current.encode_queries(texts)

    def encode_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of documents."""
        return self._current.encode_documents(texts)

    def encode_tokens(
        self, texts: Sequence[str], role: Role = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """Unit embeddings and the states of tokens (tokens.py)."""
        return self._current.encode_tokens(texts, role)

    def embed(self, texts: Sequence[str], role: Role) -> Float[Tensor, "texts encoder_dim"]:
        """Unit embeddings of the torch encoder as part of the graph."""
        return self._current.embed(texts, role)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Token counts of documents, with special tokens and prompt, before truncation."""
        return self._current.token_counts(texts)

    def word_tokens(self, texts: Sequence[str]) -> list[WordTokens] | None:
        """As `WordEncoder`."""
        return self._current.word_tokens(texts)


def load_automatic(
    request: Exporting,
    load_torch: Callable[[], Encoder],
    dtype: str | None,
    batch_size: int,
    tell: Callable[[str], None],
) -> TextEncoder:
    """Load what runs fastest at once, and prepare what is faster in the background.

    Nothing that fails here is raised but a failure of torch itself.

    Args:
        request: the encoder, and the cache.
        load_torch: loads the torch encoder in the required precision.
        dtype: required precision, or None.
        batch_size: texts per run.
        tell: receives one line when an export starts.
    """
    origin = ExportOrigin(request, dtype, batch_size)
    cached = from_cache(request, dtype, batch_size)
    if cached.encoder is not None:
        return AutomaticEncoder(cached.encoder, origin=origin)
    if cached.problem is not None:
        return AutomaticEncoder(load_torch(), cached.problem, origin=origin)
    encoder = AutomaticEncoder(load_torch(), f"an export for {OPENVINO} is being prepared", origin=origin)
    try:
        encoder.prepare(request, dtype, batch_size, again=cached.damaged)
    except OSError as error:
        encoder.stay(_not_kept(error))
    else:
        tell(
            f"a faster encoder is being prepared ({OPENVINO}, once on this machine); torch encodes until then"
        )
    return encoder


class CachedExport(NamedTuple):
    """State of the cache for an encoder.

    Attributes:
        encoder: the exported one; None if it is not there, or not to be used.
        problem: reason why it is not to be used.
        damaged: True if it is there and damaged.
    """

    encoder: CompiledEncoder | None = None
    problem: str | None = None
    damaged: bool = False


def from_cache(request: Exporting, dtype: str | None, batch_size: int) -> CachedExport:
    """Load the exported encoder if it is there and agrees with torch; arguments as for `load_automatic`."""
    try:
        exports = outcome(request, dtype)
        if exports.dtype is None:
            return CachedExport(problem=exports.problem)
        encoder = cached_encoder(request, exports.dtype, batch_size=batch_size)
    except Exception as error:  # native libraries: of another processor, built otherwise, cut short
        problem = f"{type(error).__name__}: {error}"
        _log.warning("the encoder stays with torch: %s does not start (%s)", OPENVINO, problem)
        return CachedExport(problem=problem)
    return CachedExport(encoder, damaged=encoder is None)


def _not_kept(error: OSError) -> str:
    return (
        f"no export can be kept ({error}); set DSEARCH_CACHE to a folder that can be written, or "
        "DSEARCH_BACKEND=torch"
    )


_POLL_S = 0.2

# The lock comes before the imports, which take seconds and half a gigabyte in each process that waits.
_BOOTSTRAP = """\
import os, sys
sys.path[:] = {path!r}
if hasattr(os, "nice"):
    os.nice(10)
from filelock import FileLock
with FileLock({lock!r}):
    if {again!r} or not os.path.exists({record!r}):
        from dsearch.threads import set_threads
        set_threads(1)
        from dsearch.encoder.load import prepare
        prepare({name!r}, {cache!r}, {trained!r})
"""


class Preparation:
    """Exports in another process, then hands the exported encoder over.

    Args:
        request: the encoder.
        dtype: required precision, or None; as for `outcome`.
        batch_size: texts per run of the exported encoder.
        on_ready: receives the exported encoder, in a thread of this object.
        on_problem: receives the reason why there is none.
    """

    def __init__(
        self,
        request: Exporting,
        dtype: str | None,
        batch_size: int,
        on_ready: Callable[[CompiledEncoder], None],
        on_problem: Callable[[str], None],
    ):
        self._request, self._dtype, self._batch_size = request, dtype, batch_size
        self._on_ready, self._on_problem = on_ready, on_problem
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="encoder-preparation", daemon=True)

    def start(self, *, again: bool = False) -> None:
        """Start it.

        Args:
            again: export even if there is one, which is damaged.

        Raises:
            OSError: the cache cannot be written, or no process started.
        """
        cache = self._request.cache
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError(f"{cache} cannot be written")
        folder = export_folder(self._request)
        code = _BOOTSTRAP.format(
            path=[str(Path(entry or ".").absolute()) for entry in sys.path],
            lock=str(cache / f"{folder.name}.preparing"),
            record=str(folder / "export.json"),
            again=again,
            name=self._request.name,
            cache=str(cache),
            trained=self._request.trained,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the command, not this
        )
        atexit.register(self._end)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; True if it came within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _end(self) -> None:
        """Let a takeover that has begun finish: native code must not run while the interpreter ends."""
        self._ending.set()
        self._thread.join()

    def _follow(self) -> None:
        while self._process.poll() is None:
            if self._ending.wait(_POLL_S):
                return
        try:
            result = self._result()
        except Exception as error:  # libraries fail in many ways, and torch does their work
            result = f"{type(error).__name__}: {error}"
        atexit.unregister(self._end)
        if isinstance(result, str):
            self._on_problem(result)
        else:
            self._on_ready(result)

    def _result(self) -> CompiledEncoder | str:
        assert self._process.stdout is not None  # a pipe
        with self._process.stdout as pipe:
            said = pipe.read()
        cached = outcome(self._request, self._dtype)
        if cached.dtype is None:
            if cached.problem is not None:
                return cached.problem
            if said.strip():
                return str(json.loads(said.splitlines()[-1])["problem"])  # libraries print, too
            return f"the process that exports ended with status {self._process.returncode}"
        encoder = cached_encoder(self._request, cached.dtype, batch_size=self._batch_size)
        if encoder is None:
            return "the export was damaged at once"
        encoder.encode_queries(["the first call prepares what later ones use"])
        return encoder


LEAST_COSINE = 0.9999  # of a back end that nobody chose; a chosen one needs `export.LEAST_CLOSE`


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """Result of looking into the cache; without both members nothing was exported yet.

    Attributes:
        dtype: precision in which embeddings agree with those of torch.
        problem: reason why torch stays.
    """

    dtype: str | None = None
    problem: str | None = None


def outcome(request: Exporting, dtype: str | None = None) -> ExportOutcome:
    """Look up what an export has given; no model is read.

    Args:
        request: the encoder.
        dtype: required precision; when None, bfloat16 where processor and agreement allow it, else float32.
    """
    agreement = agreement_of(request)
    if agreement is None:
        return ExportOutcome(problem=_recorded(request))
    wanted = [dtype] if dtype is not None else [HALF, FLOAT] if HALF in agreement else [FLOAT]
    least = 0.0
    for kind in wanted:
        cosine = float(agreement.get(kind, {}).get("least", 0.0))
        least = max(least, cosine)
        # A cache may have come from another machine: the processor of this one has a say too.
        if cosine >= LEAST_COSINE and (kind != HALF or best_dtype(OPENVINO) == HALF):
            return ExportOutcome(kind)
    return ExportOutcome(
        problem=f"the least cosine of {OPENVINO} with torch is {least:.5f}, and {LEAST_COSINE} is required"
    )


def record_problem(request: Exporting, problem: str) -> None:
    """Keep the reason, so that later processes do not try again; no effect where nothing can be written."""
    file = _problem_file(request)
    with contextlib.suppress(OSError):
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        unfinished.write_text(json.dumps({"problem": problem}), encoding="utf-8")
        unfinished.replace(file)


def _recorded(request: Exporting) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(_problem_file(request).read_text(encoding="utf-8"))["problem"])
    return None


def _problem_file(request: Exporting) -> Path:
    folder = export_folder(request)
    return folder.with_name(f"{folder.name}.problem.json")
