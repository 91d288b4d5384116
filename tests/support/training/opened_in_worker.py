"""A data set that searches in the workers of a DataLoader, by layers that each of them opens for itself."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

import dsearch


class OpenedInWorker(Dataset[Tensor]):
    """Contexts by a layer over a folder and by one over a server: what is sent is their names."""

    def __init__(self, home: str, address: str, collection: str, states: Tensor):
        self.home, self.address, self.collection, self.states = home, address, collection, states

    @cached_property
    def layers(self) -> list[Any]:
        return [
            dsearch.open_layer(self.home, self.collection, mode="dense"),
            dsearch.RemoteSearch(self.address, self.collection, mode="dense"),
        ]

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, at: int) -> Tensor:
        with torch.no_grad():
            return torch.stack([layer(self.states[at : at + 1]).context[0] for layer in self.layers])
