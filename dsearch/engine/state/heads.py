"""`KeptHeads`: the heads of a collection's versions, as they were stored, loaded when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.engine.models.files import load_fixed_head, load_head
from dsearch.engine.models.nearest import index_keys
from dsearch.store import Store

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head


class KeptHeads:
    """Heads by version, as modules and as arrays.

    Args:
        store: store of the versions.
    """

    def __init__(self, store: Store):
        self._store = store
        self._modules: dict[str, Head] = {}
        self._fixed: dict[str, FixedHead | None] = {}

    def of(self, version: str) -> Head:
        """Return the head of a version, which loads torch.

        Raises:
            ModelNotFound, CorruptData.
        """
        if version not in self._modules:
            import torch

            fixed = self.fixed(version)  # its memory serves both
            memory = None if fixed is None else fixed.memory
            with torch.inference_mode(False):  # inference tensors would never get gradients
                head = load_head(self._store, version, memory).settle()
                self._modules[version] = head if memory is not None else index_keys(head)
        return self._modules[version]

    def fixed(self, version: str) -> FixedHead | None:
        """Return the head of a version in NumPy; None if one of its parts needs torch.

        Raises:
            ModelNotFound, CorruptData.
        """
        if version not in self._fixed:
            head = load_fixed_head(self._store, version)
            self._fixed[version] = None if head is None else index_keys(head)
        return self._fixed[version]

    def forget(self, version: str) -> None:
        """Drop the heads of a deleted version."""
        self._modules.pop(version, None)
        self._fixed.pop(version, None)
