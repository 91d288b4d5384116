"""`AutomaticEncoder`: an encoder whose back end changes while it is used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from dsearch.encoder.automatic.outcome import outcome
from dsearch.encoder.automatic.preparation import Preparation
from dsearch.encoder.backends import FLOAT, OPENVINO, TORCH, Backend
from dsearch.encoder.exported.cache import cached_encoder
from dsearch.encoder.exported.compiled import CompiledEncoder
from dsearch.encoder.exported.request import Exporting, ExportOrigin
from dsearch.encoder.text_encoder import EncoderIdentity, TextEncoder
from dsearch.encoder.token_states import TextTokens
from dsearch.encoder.tokens import Vocabulary
from dsearch.encoder.word_tokens import WordTokens

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
        """Unit embeddings and the states of tokens (token_states.py)."""
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
