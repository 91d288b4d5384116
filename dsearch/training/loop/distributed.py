"""Several processes that train one model: sharing of the encoding, and gathering of its results.

Every process gathers all embeddings of a batch and computes the same loss from them (cross-device negatives).
It encodes, and backpropagates through, only its share of the texts. So the sum of the processes' gradients is
that of one process, for any number of them. Started by `torchrun`; on CPUs over gloo, on GPUs over NCCL.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn


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
