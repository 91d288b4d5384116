"""Fine-tuned encoders: a copy that learns, its change as tensors, and applying the change.

There are two methods. `lora`: a product B A of low rank is learned beside every linear layer W of the model,
W stays (W + α/r · B A; Hu et al. 2021, arXiv:2106.09685, eq. 3; by `peft`, extra `lora`). `all`: every weight
is learned. For `lora` only A and B are stored, some hundred kilobytes. For serving they are added into a copy
of W, so that the cost of a search does not change and `peft` is not needed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from dsearch.encoder.automatic import AutomaticEncoder
from dsearch.encoder.backends import BACKENDS, TORCH
from dsearch.encoder.compiled import CompiledEncoder
from dsearch.encoder.encoder import TokenBatch
from dsearch.encoder.text_encoder import EncoderIdentity, Role, TextEncoder
from dsearch.encoder.tokens import TextTokens, TokenEncoder, Vocabulary, WordEncoder, WordTokens
from dsearch.errors import CorruptData, EncoderUnavailable, InvalidRequest, MissingExtra

METHODS = ("lora", "all")
# Of BERT's pooler: sentence-transformers pools by itself, so these have no part in an embedding.
_UNUSED = "pooler.dense"


@dataclass(frozen=True, slots=True)
class EncoderTraining:
    """Method by which an encoder learns.

    Attributes:
        method: "lora" or "all".
        rank: r of B A; for "lora".
        alpha: α; for "lora".
    """

    method: str = "lora"
    rank: int = 16
    alpha: int = 32

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidRequest(f"method={self.method!r}; use one of {', '.join(METHODS)}")
        for name in ("rank", "alpha"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}; use an integer of at least 1")


@dataclass(frozen=True, slots=True)
class EncoderChange:
    """Change of an encoder by training.

    Attributes:
        training: method of the training.
        tensors: for "lora" `<layer>.A` and `<layer>.B`, for "all" every weight by its name.
    """

    training: EncoderTraining
    tensors: Mapping[str, Tensor]


class _Wrapped(nn.Module):
    """An encoder whose weights are those of another one inside it."""

    encoder: Any

    def encode_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of queries."""
        return self.encoder.encode_queries(texts)

    def encode_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of documents."""
        return self.encoder.encode_documents(texts)

    def embed(self, texts: Sequence[str], role: Role) -> Float[Tensor, "texts encoder_dim"]:
        """Unit embeddings as part of the graph."""
        return self.encoder.embed(texts, role)

    def encode_tokens(
        self, texts: Sequence[str], role: Role = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """As `TokenEncoder`.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        if not isinstance(self.encoder, TokenEncoder):
            raise EncoderUnavailable(
                f"encoder {self.encoder.identity.name!r} gives no token states, so there is no second stage "
                "with it; search with stages=1"
            )
        return self.encoder.encode_tokens(texts, role)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """As `TokenCounter`; of an encoder that is one."""
        return self.encoder.token_counts(texts)

    def word_tokens(self, texts: Sequence[str]) -> list[WordTokens] | None:
        """As `WordEncoder`; None of an encoder that is none."""
        return self.encoder.word_tokens(texts) if isinstance(self.encoder, WordEncoder) else None


class LearningEncoder(_Wrapped):
    """A copy of an encoder that learns; the encoder itself stays as it is. A `TextEncoder`.

    Dropout is off: what learns is the function that will be served.

    Args:
        encoder: a `TextEncoder` that is a torch module.
        training: method of the training.
        seed: random seed of the factors A; B starts at zero, so that the copy starts as the encoder.

    Raises:
        InvalidRequest: an encoder without weights to train, or without a linear layer for "lora".
        MissingExtra: "lora" without `peft`.
    """

    def __init__(self, encoder: TextEncoder, training: EncoderTraining, *, seed: int = 0):
        super().__init__()
        encoder = with_weights(encoder)
        if not isinstance(encoder, nn.Module) or not any(True for _ in encoder.parameters()):
            raise InvalidRequest(
                f"encoder {encoder.identity.name!r} runs by {encoder.identity.backend!r} and has no weights "
                "to train; use the torch back end, or train the head alone (scope head)"
            )
        self.how = training
        self.encoder: Any = copy.deepcopy(encoder)
        self.encoder.requires_grad_(training.method == "all").eval()
        if training.method == "lora":
            _add_factors(self.encoder, training, seed)

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the initial encoder; the changed one has no name yet."""
        return self.encoder.identity

    def embed_tokens(self, texts: Sequence[str], role: Role) -> TokenBatch:
        """Unit embeddings and the states of tokens as part of the graph.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        if not hasattr(self.encoder, "embed_tokens"):
            raise EncoderUnavailable(
                f"encoder {self.identity.name!r} gives no token states to learn a second stage by"
            )
        return self.encoder.embed_tokens(texts, role)

    def train(self, mode: bool = True) -> LearningEncoder:
        """Set the mode of this module; dropout stays off, also when a network around it is set to train."""
        super().train(mode)
        self.encoder.eval()
        return self

    def learning(self) -> list[nn.Parameter]:
        """The parameters that learn."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def change(self) -> EncoderChange:
        """Learned change, for `tuned`."""
        tensors: dict[str, Tensor] = {}
        if self.how.method == "all":
            tensors = {name: _cpu_copy(parameter) for name, parameter in self.encoder.named_parameters()}
        for name, layer in _adapted(self.encoder):
            tensors[f"{name}.A"] = _cpu_copy(layer.lora_A["default"].weight)
            tensors[f"{name}.B"] = _cpu_copy(layer.lora_B["default"].weight)
        return EncoderChange(self.how, tensors)


class TunedEncoder(_Wrapped):
    """An encoder with a change in it, under an identity of its own. A `TextEncoder`."""

    def __init__(self, encoder: Any, identity: EncoderIdentity):
        super().__init__()
        self.encoder = encoder
        self._identity = identity

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder, by which embeddings are comparable."""
        return self._identity

    @property
    def vocabulary(self) -> Vocabulary:
        """Token ids of the encoder; of one that has them."""
        return self.encoder.vocabulary


@torch.no_grad()
def tuned(encoder: TextEncoder, change: EncoderChange, identity: EncoderIdentity) -> TunedEncoder:
    """A copy of `encoder` with a change put into its weights.

    Args:
        encoder: the one that the change was learned on.
        change: result of `LearningEncoder.change`.
        identity: identity of the result; see `tuned_identity`.

    Raises:
        CorruptData: a change that does not fit the encoder.
        InvalidRequest: an encoder without weights.
    """
    encoder = with_weights(encoder)
    if not isinstance(encoder, nn.Module):
        raise InvalidRequest(
            f"encoder {encoder.identity.name!r} runs by {encoder.identity.backend!r}, which takes no trained "
            "weights; use the torch back end, or promote a model without an encoder"
        )
    copied: Any = copy.deepcopy(encoder)
    weights = dict(copied.named_parameters())
    try:
        if change.training.method == "all":
            for name, value in change.tensors.items():
                weights[name].copy_(value)
        else:
            scale = change.training.alpha / change.training.rank
            for layer in {name.removesuffix(".A") for name in change.tensors if name.endswith(".A")}:
                weight = weights[f"{layer}.weight"]
                factor = change.tensors[f"{layer}.B"] @ change.tensors[f"{layer}.A"]
                weight.add_(scale * factor.to(weight))
    except (KeyError, RuntimeError) as error:
        raise CorruptData(
            f"the trained weights do not fit encoder {encoder.identity.name!r}: {error}"
        ) from error
    return TunedEncoder(copied.requires_grad_(False).eval(), identity)


def with_weights(encoder: TextEncoder) -> TextEncoder:
    """The encoder whose weights can be trained: of an exported one the torch encoder that it came from."""
    return encoder.reference if isinstance(encoder, CompiledEncoder | AutomaticEncoder) else encoder


def tuned_identity(base: EncoderIdentity, change_sha256: str) -> EncoderIdentity:
    """The identity of an encoder with a change in it.

    Args:
        base: identity of the encoder that it started from.
        change_sha256: digest of the file that holds the change.
    """
    digest = hashlib.sha256(f"{base.weights_sha256}{change_sha256}".encode()).hexdigest()
    name = f"{base.name}+{change_sha256[:12]}"
    backend = TORCH if base.backend in BACKENDS else base.backend  # torch runs what was trained
    return replace(base, name=name, weights_sha256=digest, backend=backend)


def _add_factors(encoder: Any, training: EncoderTraining, seed: int) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtra(
            "training by lora needs peft, which is not installed; run pip install 'dsearch[lora]', or train "
            "all weights of the encoder (--encoder-training all)"
        ) from error
    layers = [
        name
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith(_UNUSED)
    ]
    if not layers:
        raise InvalidRequest(
            f"encoder {encoder.identity.name!r} has no linear layer for lora; train all of its weights "
            "instead (--encoder-training all)"
        )
    config = LoraConfig(r=training.rank, lora_alpha=training.alpha, lora_dropout=0.0, target_modules=layers)
    device = next(encoder.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, encoder)
    encoder.to(device).eval()


def _adapted(encoder: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in encoder.named_modules() if hasattr(module, "lora_A"))


def _cpu_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().clone().contiguous()
