"""`CompiledEncoder`: an exported model with its tokenizer, behind the encoder interface of the engine.

Queries, documents and their tokens are encoded without loading torch, sentence-transformers or transformers.
Functions that need gradients (`embed`, training) load the torch encoder that it was exported from; so do
token states where the exported ones do not agree with torch's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int64

from dsearch.encoder.backends import Run, Tokens
from dsearch.encoder.text_encoder import CPU_BATCH, EncoderIdentity, length_sorted_batches
from dsearch.encoder.tokens import (
    TextTokens,
    Vocabulary,
    WordTokens,
    inside_text,
    whole_tokenizer,
    word_tokenizer,
)
from dsearch.encoder.weights import Weights
from dsearch.threads import thread_budget

if TYPE_CHECKING:
    from torch import Tensor

    from dsearch.encoder.encoder import Encoder
    from dsearch.encoder.text_encoder import Role

# Model input → attribute of a tokenised text.
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

_LEAST_WIDTH = 16  # tokens of a padded query; most have fewer
# Tokens of a batch for each thread: what is computed from more leaves the cache of a core, and texts a second
# fall by a tenth at 8,192. Memory, which grows with the square of the text length, is bounded by the second.
_THREAD_TOKENS, _BATCH_TOKENS = 1024, 8192


@dataclass(frozen=True, slots=True)
class Exporting:
    """Request to export an encoder.

    Attributes:
        name: the user's name of the encoder.
        weights: its files.
        max_tokens: limit above which texts are cut; None for the model's own limit. The exported model
            accepts any length.
        cache: folder of the exports.
        load: function that loads the torch encoder in float32.
        trained: description of a trained change of it (trained.py); None for an encoder by name.
    """

    name: str
    weights: Weights
    max_tokens: int | None
    cache: Path
    load: Callable[[], Encoder]
    trained: str | None = None


class ExportOrigin(NamedTuple):
    """Export of an encoder, made or to be made; trained changes of it are exported alike.

    Attributes:
        request: the encoder.
        dtype: required precision, or None.
        batch_size: texts per run.
    """

    request: Exporting
    dtype: str | None
    batch_size: int


class CompiledEncoder:
    """`TextEncoder` that runs by an exported model. A single text is padded to 16, 32, 64, … tokens.

    Args:
        run: exported model; see `backends`.
        tokenizer: JSON of a `tokenizers.Tokenizer`.
        inputs: names of the arrays that `run` takes, of `FIELDS`.
        padding: token that pads short texts.
        prompts: prefixes of texts by name; those of `Role` are used.
        identity: identity of the encoder, including back end and precision.
        reference: function that loads the exported torch encoder.
        batch_size: texts per run, fewer if they are long.
        states_problem: reason why token states come from torch; None where those of `run` agree with them.
    """

    def __init__(
        self,
        run: Run,
        tokenizer: str,
        *,
        inputs: Sequence[str],
        padding: int,
        prompts: Mapping[str, str],
        identity: EncoderIdentity,
        reference: Callable[[], Encoder],
        batch_size: int = CPU_BATCH,
        states_problem: str | None = None,
    ):
        self.states_problem = states_problem
        self.origin: ExportOrigin | None = None  # set by who opens an export
        self._run = run
        self._cut, self._whole = whole_tokenizer(tokenizer), whole_tokenizer(tokenizer)
        self._cut.enable_truncation(identity.max_tokens)
        self._inputs, self._padding, self.prompts = tuple(inputs), padding, dict(prompts)
        self._identity, self.batch_size = identity, batch_size
        self._load_reference = reference
        self._loading = threading.Lock()
        self._reference: Encoder | None = None

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder, by which embeddings are comparable."""
        return self._identity

    @property
    def reference(self) -> Encoder:
        """The exported torch encoder, loaded on first use."""
        with self._loading:
            if self._reference is None:
                import torch

                # A search may load it; weights created in inference mode could never be trained.
                with torch.inference_mode(False):
                    self._reference = self._load_reference()
            return self._reference

    @property
    def vocabulary(self) -> Vocabulary:
        """Token ids of the encoder."""
        marks = self._whole.encode("").ids  # those around every text
        first, last = (marks[0], marks[-1]) if len(marks) == 2 else (None, None)
        return Vocabulary(first, last, self._whole.get_vocab_size(), self._whole.decode)

    def encode_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of queries."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of documents."""
        return self._encode(texts, "document")

    def embed(self, texts: Sequence[str], role: Role) -> Float[Tensor, "texts encoder_dim"]:
        """Unit embeddings of the torch encoder as part of the graph."""
        return self.reference.embed(texts, role)

    def encode_tokens(
        self, texts: Sequence[str], role: Role = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """Embeddings and token states, by one pass; states by torch where the exported ones do not agree."""
        if self.states_problem is None:
            return self.exported_tokens(texts, role)
        return self.reference.encode_tokens(texts, role)

    def exported_tokens(
        self, texts: Sequence[str], role: Role = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """`encode_tokens` of the exported model, whether its states agree with torch's or not."""
        out = np.empty((len(texts), self._identity.dimension), np.float32)
        prompt = self.prompts.get(role, "")
        encoded = self._cut.encode_batch([prompt + text for text in texts])  # with the places of tokens
        tokens: dict[int, TextTokens] = {}
        for batch in self._batches(encoded):
            outputs = self._run(self._padded([encoded[int(i)] for i in batch]), states=True)
            assert outputs.states is not None
            out[batch] = outputs.embeddings
            for at, states in zip(batch.tolist(), outputs.states, strict=True):
                tokens[at] = _tokens_of(encoded[at], states, prompt)
        return _units(out), [tokens[at] for at in range(len(texts))]

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Token counts of documents, with special tokens and prompt, before truncation."""
        prompt = self.prompts.get("document", "")
        return [
            len(encoding) for encoding in self._whole.encode_batch_fast([prompt + text for text in texts])
        ]

    def word_tokens(self, texts: Sequence[str]) -> list[WordTokens] | None:
        """As `WordEncoder`."""
        tokenize = word_tokenizer(self._whole, self.prompts.get("document", ""))
        return None if tokenize is None else tokenize(texts)

    def _encode(self, texts: Sequence[str], role: str) -> Float32[np.ndarray, "texts encoder_dim"]:
        out = np.empty((len(texts), self._identity.dimension), np.float32)
        prompt = self.prompts.get(role, "")
        encoded = self._cut.encode_batch_fast([prompt + text for text in texts])
        for batch in self._batches(encoded):
            out[batch] = self._run(self._padded([encoded[int(i)] for i in batch])).embeddings
        return _units(out)

    def _batches(self, encoded: Sequence[Any]) -> Iterator[Int64[np.ndarray, " batch"]]:
        lengths = np.array([len(encoding) for encoding in encoded], np.int64)
        tokens = min(_THREAD_TOKENS * thread_budget(), _BATCH_TOKENS)
        return length_sorted_batches(lengths, self.batch_size, tokens=tokens)

    def _padded(self, encoded: Sequence[Any]) -> Tokens:
        width = max(1, *(len(encoding) for encoding in encoded))
        if len(encoded) == 1:
            # OpenVINO compiles again whenever the shape differs from that of the last call, which takes
            # longer than a few more tokens. In a batch padding costs more.
            width = max(
                width, min(max(_LEAST_WIDTH, 1 << (width - 1).bit_length()), self._identity.max_tokens)
            )
        arrays: dict[str, Int64[np.ndarray, "texts tokens"]] = {}
        for name in self._inputs:
            filler = self._padding if name == "input_ids" else 0
            arrays[name] = np.full((len(encoded), width), filler, np.int64)
            for place, encoding in enumerate(encoded):
                arrays[name][place, : len(encoding)] = getattr(encoding, FIELDS[name])
        return arrays


def _tokens_of(encoding: Any, states: Float32[np.ndarray, "tokens encoder_dim"], prompt: str) -> TextTokens:
    spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    inside = inside_text(spans, np.array(encoding.special_tokens_mask, bool), prompt)
    return TextTokens(_units(states[: len(spans)][inside]), spans[inside] - len(prompt))


def _units(rows: Float32[np.ndarray, "rows encoder_dim"]) -> Float32[np.ndarray, "rows encoder_dim"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
