"""`Encoder`: a sentence-transformers model as a function from texts to unit vectors, differentiable."""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from dsearch.encoder.packed import load_packed
from dsearch.encoder.text_encoder import (
    EncoderIdentity,
    Role,
    default_batch_size,
    length_sorted_batches,
    require_tokens,
)
from dsearch.encoder.tokens import (
    TextTokens,
    Vocabulary,
    WordTokens,
    inside_text,
    whole_tokenizer,
    word_tokenizer,
)
from dsearch.encoder.weights import DEFAULT_ENCODER, Weights, find_weights
from dsearch.errors import EncoderUnavailable, InvalidRequest, amount
from dsearch.products import in_full_precision, quicken

_log = logging.getLogger(__name__)
_Part = TypeVar("_Part")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_HALVES = (torch.float16, torch.bfloat16)


class Encoder(nn.Module):
    """A sentence-transformers model as a torch module.

    Texts longer than `max_tokens` are truncated. Embeddings have length 1.
    """

    def __init__(self, model: Any, identity: EncoderIdentity, *, batch_size: int | None = None):
        super().__init__()
        self.model = model
        self._batch_size = batch_size
        self._identity = identity
        # A fast tokenizer changes its padding during a call, so it is not reentrant.
        self._tokenizing = threading.Lock()
        # The tokenizer with its size, and its copy that cuts nothing off.
        self._whole: tuple[tuple[Any, int], Any] | None = None

    @classmethod
    def load(
        cls,
        name: str = DEFAULT_ENCODER,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_tokens: int | None = None,
        batch_size: int | None = None,
    ) -> Encoder:
        """Load the model `name` (see weights.py) from disk, without network access.

        Args:
            name: name or folder of a sentence-transformers model.
            device: "cpu", "cuda", "cuda:1", "mps".
            dtype: "float32", whatever the model was saved in; or "bfloat16" for autocast: faster, embeddings
                with a cosine above .9999.
            max_tokens: limit above which texts are truncated; the model's own when None.
            batch_size: texts encoded at a time; 256 on a CUDA GPU and 32 elsewhere when None. It is halved
                while they do not fit into the memory of the GPU.

        Raises:
            EncoderUnavailable: no weights, or not a sentence-transformers model.
            InvalidRequest: unknown dtype, missing device, or limit above the model's.
        """
        if dtype not in _DTYPES:
            raise InvalidRequest(f"dtype={dtype!r}; use {' or '.join(_DTYPES)}")
        check_device(device)
        weights = find_weights(name)
        model = _load_model(weights, device, name)
        longest = model.get_max_seq_length()
        if max_tokens is not None:
            require_tokens(max_tokens, position_limit(model), name)
            model.max_seq_length = max_tokens
        elif longest == math.inf:
            raise EncoderUnavailable(
                f"encoder {name!r} (a {type(model[0]).__name__}) takes texts of any length, and dsearch cuts "
                "them into passages by a limit of tokens; give an encoder that has one"
            )
        identity = EncoderIdentity(
            name=name,
            revision=weights.revision,
            weights_sha256=weights.sha256,
            pooling=_pooling(model),
            max_tokens=int(max_tokens or longest or 0),
            backend="torch",
            dtype=dtype,
            dimension=int(_dimension(model)),
        )
        return cls(model, identity, batch_size=batch_size).eval()

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder, by which embeddings are comparable."""
        return self._identity

    @property
    def batch_size(self) -> int:
        """Texts encoded at a time, by default those of the present device."""
        if self._batch_size is None:
            return default_batch_size(self.model.device.type)
        return self._batch_size

    @batch_size.setter
    def batch_size(self, texts: int) -> None:
        self._batch_size = texts

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prefixes of texts by name; those of `Role` are used."""
        return self.model.prompts or {}

    @property
    def vocabulary(self) -> Vocabulary:
        """Token ids of the encoder."""
        tokenizer = self.model.tokenizer
        return Vocabulary(
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            len(tokenizer),
            lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
        )

    def encode_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of queries."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of documents."""
        return self._encode(texts, "document")

    def embed(self, texts: Sequence[str], role: Role) -> Float[Tensor, "texts encoder_dim"]:
        """Unit embeddings as part of the graph, in one batch: gradients reach the encoder's weights."""
        if not texts:
            return torch.zeros(0, self.identity.dimension, device=self.model.device)
        with self._tokenizing:
            prepared = self._prepared(texts, role)
        with self._precision():
            embedding = self.model(self._features(prepared))["sentence_embedding"]
        precise = embedding if embedding.dtype == torch.float64 else embedding.float()
        return nn.functional.normalize(precise, dim=-1)

    def embed_tokens(self, texts: Sequence[str], role: Role = "document") -> TokenBatch:
        """As `embed`, with the state of each token (tokens.py), of at least one text.

        Raises:
            EncoderUnavailable: a model without states, or a tokenizer without places of tokens.
        """
        prompt = self.prompts.get(role, "")
        with self._tokenizing:
            prepared = self._prepared(texts, role)
            tokenizer = self.model.tokenizer
            if not tokenizer.is_fast:
                raise EncoderUnavailable(
                    f"the tokenizer of {self.identity.name!r} does not say where tokens are; there is no "
                    "second stage with it"
                )
            marked = tokenizer(
                [prompt + text for text in texts],
                truncation=True,
                max_length=self.model.get_max_seq_length(),
                padding=False,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                verbose=False,
            )
        with self._precision():
            return token_batch(self.model, self._features(prepared), marked, prompt)

    @torch.inference_mode()
    def encode_tokens(
        self, texts: Sequence[str], role: Role = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """Unit embeddings of texts, and the states of their tokens, by one pass.

        Raises:
            EncoderUnavailable: see `embed_tokens`.
        """
        out = np.empty((len(texts), self.identity.dimension), np.float32)
        tokens: dict[int, TextTokens] = {}
        lengths = np.array([len(text) for text in texts], np.int64)
        for batch in length_sorted_batches(lengths, self.batch_size):
            some = [texts[int(i)] for i in batch]
            encoded = self._within_memory(some, lambda part: self.embed_tokens(part, role))
            out[batch] = torch.cat([part.embeddings for part in encoded]).cpu().numpy()
            at = iter(batch.tolist())
            for part in encoded:
                for states, spans in zip(part.states, part.spans, strict=True):
                    tokens[next(at)] = TextTokens(states.cpu().numpy(), spans)
        return out, [tokens[at] for at in range(len(texts))]

    def _prepared(self, texts: Sequence[str], role: Role) -> Mapping[str, Any]:
        prompt = self.prompts.get(role, "")
        # `preprocess` since sentence-transformers 6, `tokenize` before.
        prepare = getattr(self.model, "preprocess", None) or self.model.tokenize
        return prepare([prompt + text for text in texts])

    def _features(self, prepared: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self.model.device) if isinstance(value, Tensor) else value
            for key, value in prepared.items()
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Token counts of documents, with special tokens and prompt, before truncation."""
        prompt = self.prompts.get("document", "")
        with self._tokenizing:
            tokens = self.model.tokenizer(
                [prompt + text for text in texts], truncation=False, padding=False, verbose=False
            )
        return [len(ids) for ids in tokens["input_ids"]]

    def word_tokens(self, texts: Sequence[str]) -> list[WordTokens] | None:
        """As `WordEncoder`."""
        tokenizer = self.model.tokenizer
        if not getattr(tokenizer, "is_fast", False) or getattr(tokenizer, "split_special_tokens", False):
            return None
        with self._tokenizing:
            version = tokenizer, len(tokenizer)
            if self._whole is None or self._whole[0] != version:
                self._whole = version, whole_tokenizer(tokenizer.backend_tokenizer.to_str())
            whole = self._whole[1]
        tokenize = word_tokenizer(whole, self.prompts.get("document", ""))
        return None if tokenize is None else tokenize(texts)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str], role: Role) -> Float32[np.ndarray, "texts encoder_dim"]:
        out = np.empty((len(texts), self.identity.dimension), np.float32)
        lengths = np.array([len(text) for text in texts], np.int64)
        for batch in length_sorted_batches(lengths, self.batch_size):
            some = [texts[int(i)] for i in batch]
            encoded = self._within_memory(some, lambda part: self.embed(part, role).cpu())
            out[batch] = torch.cat(encoded).numpy()
        return out

    def _within_memory(self, texts: Sequence[str], embed: Callable[[Sequence[str]], _Part]) -> list[_Part]:
        """Encode a batch; halve the batch size for good if the device runs out of memory."""
        parts: list[_Part] = []
        while texts:
            some = texts[: self.batch_size]
            try:
                with in_full_precision(self.model.device.type):  # embeddings are the identity's anywhere
                    parts.append(embed(some))
            except torch.OutOfMemoryError:
                if len(some) == 1:
                    raise
                self.batch_size = len(some) // 2
                _log.warning("out of memory: %d texts are encoded at a time from now on", self.batch_size)
            else:
                texts = texts[len(some) :]
        return parts

    def __deepcopy__(self, memo: dict[int, Any]) -> Encoder:
        """Copy the weights; the lock is not shared."""
        copied = Encoder(copy.deepcopy(self.model, memo), self._identity, batch_size=self._batch_size)
        return copied.train(self.training)

    def _precision(self) -> Any:
        if self.identity.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=_DTYPES[self.identity.dtype])


def _load_model(weights: Weights, device: str, name: str) -> Any:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    if weights.packed is not None:
        model: Any = load_packed(weights.packed, device)
    else:
        try:
            # Local files only: the hub is not accessed, whatever the folder's files name.
            model = SentenceTransformer(str(weights.folder), device=device, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise EncoderUnavailable(
                f"encoder {name!r}: {weights.folder} does not load as a sentence-transformers model "
                f"({type(error).__name__}: {error})"
            ) from error
    if any(parameter.dtype in _HALVES for parameter in model.parameters()):
        model.float()  # many are published in half precision, which overflows in training
    quicken(model)
    return model


def check_device(device: str) -> None:
    """Raise InvalidRequest for an unknown or missing device."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InvalidRequest(f"device={device!r}; use cpu, cuda, cuda:N or mps") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            f"device={device!r}; torch sees no CUDA GPU here: use cpu, or see dsearch doctor"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InvalidRequest(f"device={device!r}; torch sees no Apple GPU here: use cpu")


def position_limit(model: Any) -> int | None:
    """Return the maximum number of tokens of a sentence-transformers model; None without a limit."""
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    return getattr(config, "max_position_embeddings", None)


def _dimension(model: Any) -> int:
    # Renamed in sentence-transformers 6.
    ask = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    return ask()


def _pooling(model: Any) -> str:
    for module in model:
        for mode in ("get_pooling_mode_str", "pooling_mode"):
            setting = getattr(module, mode, None)
            if setting is not None:
                return str(setting() if callable(setting) else setting)
    return "none"


class TokenBatch(NamedTuple):
    """A batch of texts in the graph.

    Attributes:
        embeddings: of unit length.
        states: of each text's tokens, of unit length.
        spans: [start, end) of each in characters of the text.
    """

    embeddings: Float[Tensor, "texts encoder_dim"]
    states: list[Float[Tensor, "tokens encoder_dim"]]
    spans: list[Int64[np.ndarray, "tokens 2"]]


def token_batch(model: Any, features: dict[str, Any], marked: Any, prompt: str) -> TokenBatch:
    """Run a sentence-transformers model once; gradients reach its weights.

    Args:
        model: the model.
        features: what it takes.
        marked: its tokenizer's output for the same texts, with offsets and marks of special tokens.
        prompt: text in front of each, whose tokens are left out.

    Raises:
        EncoderUnavailable: the model gives no states, or others than one a token.
    """
    output = model(features)
    states = states_of(output, features)
    if states is None:
        raise EncoderUnavailable(
            "this encoder has no state for each token, so there is no second stage with it; use a "
            "transformer with a pooling layer, such as the default encoder"
        )
    of_texts: list[Tensor] = []
    places: list[np.ndarray] = []
    masks = features["attention_mask"].bool().cpu().numpy()
    for row, mask in enumerate(masks):
        offsets = np.array(marked["offset_mapping"][row], np.int64).reshape(-1, 2)
        special = np.array(marked["special_tokens_mask"][row], bool)
        if len(offsets) != int(mask.sum()):
            raise EncoderUnavailable(
                f"this encoder's tokenizer gives {amount(len(offsets), 'token')} for a text and "
                f"{int(mask.sum())} for "
                "it in a batch; there is no second stage with it"
            )
        inside = inside_text(offsets, special, prompt)
        at = torch.as_tensor(np.flatnonzero(mask)[inside]).to(states.device)
        of_texts.append(nn.functional.normalize(states[row, at].float(), dim=-1))
        places.append(offsets[inside] - len(prompt))
    embeddings = nn.functional.normalize(output["sentence_embedding"].float(), dim=-1)
    return TokenBatch(embeddings, of_texts, places)


def states_of(
    output: dict[str, Any], features: dict[str, Any]
) -> Float[Tensor, "texts tokens encoder_dim"] | None:
    """The state of each token in a model's output; None if there is not one a token."""
    states = output.get("token_embeddings")
    return None if states is None or states.shape[:2] != features["input_ids"].shape else states
