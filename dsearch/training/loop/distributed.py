"""Gradients of an encoder over many texts, by several processes and with the memory of few texts.

Every process gathers all embeddings of a batch and computes the same loss from them (cross-device negatives).
It encodes, and backpropagates through, only its share of the texts. So the sum of the processes' gradients is
that of one process, for any number of them. Started by `torchrun`; on CPUs over gloo, on GPUs over NCCL.

`cached_backward` has the memory of few texts, by gradient caching:

    1  encode all texts, chunk by chunk, without a graph                 E = f(x; θ)
    2  the loss as a function of the embeddings alone                    G = ∂L/∂E
    3  encode each chunk again, with a graph, and pass its part of G     ∂L/∂θ = Σ_c (∂E_c/∂θ)ᵀ G_c

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (arXiv:2101.06983),
section 3.2, eq. 5–8. It is exact, by the chain rule, and costs one more forward pass. If a process has no
more texts of each list than a chunk holds, a single pass is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, distributed, nn

from dsearch.encoder import LearningEncoder
from dsearch.encoder.encoder import TokenBatch
from dsearch.encoder.text_encoder import Role


@dataclass(frozen=True, slots=True)
class Processes:
    """This process within a group that trains together.

    Attributes:
        rank: rank of this process, from 0.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True for the process that writes files and reports progress."""
        return self.rank == 0

    def share(self, texts: int) -> slice:
        """Slice of the texts that this process encodes."""
        return self._share_of(self.rank, texts)

    def gathered(
        self, mine: Float[Tensor, "share encoder_dim"], texts: int
    ) -> Float[Tensor, "texts encoder_dim"]:
        """The embeddings of all texts, from everybody's share."""
        if self.count == 1:
            return mine
        longest = -(-texts // self.count)
        padded = mine.new_zeros(longest, mine.shape[1])
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        distributed.all_gather(parts, padded)
        shares = [self._share_of(rank, texts) for rank in range(self.count)]
        return torch.cat(
            [part[: share.stop - share.start] for part, share in zip(parts, shares, strict=True)]
        )

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes."""
        if self.count == 1:
            return
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:  # its share was empty
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        distributed.all_reduce(flat)
        at = 0
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()

    def agree(self, value: bool) -> bool:
        """Agree on stopping: True if any process wants to, so that all stop together or none does."""
        if self.count == 1:
            return value
        said = torch.tensor([float(value)], device="cuda" if distributed.get_backend() == "nccl" else "cpu")
        distributed.all_reduce(said)
        return bool(said.item())

    def _share_of(self, rank: int, texts: int) -> slice:
        longest = -(-texts // self.count)
        return slice(min(rank * longest, texts), min((rank + 1) * longest, texts))


def asked_for() -> bool:
    """True if `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(device: str = "cpu") -> Iterator[Processes]:
    """The processes that `torchrun` started, brought together; this one alone without it."""
    if not asked_for():
        yield Processes()
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


Texts = tuple[Sequence[str], Role]


def cached_backward(
    encoder: LearningEncoder,
    texts: Sequence[Texts],
    loss: Callable[[list[Tensor]], Tensor],
    *,
    chunk: int,
    processes: Processes | None = None,
) -> Float[Tensor, ""]:
    """Leave the gradients of a loss in the encoder's parameters, and in whatever else the loss depends on.

    Args:
        encoder: encoder to train.
        texts: lists of texts, each with its role; the same in every process.
        loss: function of the embeddings of each list, [texts, encoder_dim].
        chunk: texts of a list encoded with a graph at a time: what memory depends on.
        processes: those that share the work.

    Returns:
        The loss.
    """
    processes = processes or Processes()
    if processes.count == 1 and all(0 < len(list_) <= chunk for list_, _ in texts):
        value = loss([encoder.embed(list_, role) for list_, role in texts])
        value.backward()
        return value.detach()
    shares = [processes.share(len(list_)) for list_, _ in texts]
    embedded: list[Tensor] = []
    for (list_, role), share in zip(texts, shares, strict=True):
        mine = encoded(encoder, list_[share], role, chunk)
        embedded.append(processes.gathered(mine, len(list_)).requires_grad_())
    value = loss(embedded)
    value.backward()
    for (list_, role), share, embedding in zip(texts, shares, embedded, strict=True):
        if embedding.grad is None:
            continue
        mine, gradient = list_[share], embedding.grad[share]
        for at in _chunks(mine, chunk):
            again = encoder.embed([mine[i] for i in at], role)
            again.backward(gradient[torch.as_tensor(at, device=gradient.device)].to(again))
    processes.add_gradients(encoder.learning())
    return value.detach()


def cached_token_backward(
    encoder: LearningEncoder,
    texts: Sequence[Texts],
    loss: Callable[[list[TokenBatch]], Tensor],
    *,
    chunk: int,
) -> Float[Tensor, ""]:
    """As `cached_backward` in one process, for a loss of embeddings and token states.

    Args:
        encoder: encoder to train.
        texts: lists of texts, each with its role.
        loss: function of what each list gives.
        chunk: texts of a list encoded with a graph at a time.

    Returns:
        The loss.
    """
    if all(0 < len(list_) <= chunk for list_, _ in texts):
        value = loss([encoder.embed_tokens(list_, role) for list_, role in texts])
        value.backward()
        return value.detach()
    batches = [_encoded_tokens(encoder, list_, role, chunk) for list_, role in texts]
    value = loss(batches)
    value.backward()
    for (list_, role), batch in zip(texts, batches, strict=True):
        for at in _chunks(list_, chunk):
            again = encoder.embed_tokens([list_[i] for i in at], role)
            pairs = [(again.embeddings[place], batch.embeddings.grad, i) for place, i in enumerate(at)]
            outputs = [output for output, gradient, _ in pairs if gradient is not None]
            gradients = [gradient[i] for _, gradient, i in pairs if gradient is not None]
            for place, i in enumerate(at):
                if (gradient := batch.states[i].grad) is not None:
                    outputs.append(again.states[place])
                    gradients.append(gradient)
            if outputs:
                torch.autograd.backward(outputs, gradients)
    return value.detach()


@torch.no_grad()
def _encoded_tokens(encoder: LearningEncoder, texts: Sequence[str], role: Role, chunk: int) -> TokenBatch:
    """Embeddings and token states without a graph, as leaves that take a gradient."""
    parts: dict[int, tuple[Tensor, Tensor, Any]] = {}
    for at in _chunks(texts, chunk):
        batch = encoder.embed_tokens([texts[i] for i in at], role)
        parts |= dict(zip(at, zip(batch.embeddings, batch.states, batch.spans, strict=True), strict=True))
    in_order = [parts[i] for i in range(len(texts))]
    embeddings = torch.stack([of for of, _, _ in in_order]).requires_grad_()
    states = [of.clone().requires_grad_() for _, of, _ in in_order]
    return TokenBatch(embeddings, states, [spans for _, _, spans in in_order])


@torch.no_grad()
def encoded(
    encoder: LearningEncoder, texts: Sequence[str], role: Role, chunk: int
) -> Float[Tensor, "texts encoder_dim"]:
    """Embeddings without a graph, in the very chunks of the second pass."""
    out: Tensor | None = None
    for at in _chunks(texts, chunk):
        part = encoder.embed([texts[i] for i in at], role)
        if out is None:
            out = part.new_zeros(len(texts), part.shape[1])
        out[torch.as_tensor(at, device=part.device)] = part
    return encoder.embed([], role) if out is None else out


def encoded_by_all(
    encoder: LearningEncoder, texts: Sequence[str], role: Role, *, chunk: int, processes: Processes
) -> Float32[np.ndarray, "texts encoder_dim"]:
    """`encoded`, each process its share, known to all."""
    mine = encoded(encoder, texts[processes.share(len(texts))], role, chunk)
    return processes.gathered(mine, len(texts)).float().cpu().numpy()


def _chunks(texts: Sequence[str], chunk: int) -> Iterator[list[int]]:
    """Texts of like length together: a chunk is padded to its longest."""
    order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))
    return (order[start : start + chunk] for start in range(0, len(order), chunk))
