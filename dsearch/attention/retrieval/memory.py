"""`QueryMemory`: a module, `MemoryRows` whose γ, τ and c learn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.attention.arrays import numbers_of
from dsearch.attention.memory_rows import TRUSTED, FixedMemory, Indexes, MemoryRows, Recalled, Setting

ALIKE = 0.98  # cosine from which two queries count as the same one


class QueryMemory(MemoryRows, nn.Module):
    """Judged queries and their documents; γ, τ and c are its parameters. Arguments of `MemoryRows`."""

    strength: nn.Parameter
    log_temperature: nn.Parameter
    null_level: nn.Parameter

    def _fill(
        self,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: Setting,
        indexes: Indexes = (None, None),
    ) -> None:
        nn.Module.__init__(self)
        for name, part in parts.items():
            self.register_buffer(name, torch.as_tensor(part), persistent=False)
        self.texts = None if texts is None else list(texts)
        self.index, self.lenders = indexes
        self._capped = bool((self.senders != TRUSTED).any())
        self._fixed: FixedMemory | None = None
        self._set(setting)

    def _set(self, setting: Setting) -> None:
        strength, temperature, null_level, self.lending = setting
        self.strength = nn.Parameter(torch.tensor(float(strength)))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.null_level = nn.Parameter(torch.tensor(float(null_level)))

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """τ."""
        return self.log_temperature.exp()

    @property
    def setting(self) -> Setting:
        """γ, τ, c and λ."""
        return self.strength.item(), self.temperature.item(), self.null_level.item(), self.lending

    def parts(self) -> dict[str, np.ndarray]:
        """Everything but texts and setting, as arrays."""
        return {name: buffer.detach().cpu().numpy() for name, buffer in self.named_buffers()}

    def attention(
        self, states: Float[Tensor, "batch encoder_dim"], *, above: float | None = None
    ) -> tuple[Int64[Tensor, "batch near"], Float[Tensor, "batch near"]]:
        """As `MemoryRows.attention`."""
        if above is None and (served := self._served(states)) is not None:
            rows, weights = served.attention(numbers_of(states))
            return torch.as_tensor(rows), torch.as_tensor(weights)
        return super().attention(states, above=above)

    def forward(self, states: Float[Tensor, "batch encoder_dim"], *, above: float | None = None) -> Recalled:
        """Recall past queries, with γ a of each and γ r of the documents; see `attention`."""
        if above is None and (served := self._served(states)) is not None:
            return Recalled(*map(torch.as_tensor, served(numbers_of(states))))
        return self.recalled(states, above=above)

    def _served(self, states: Float[Tensor, "batch encoder_dim"]) -> FixedMemory | None:
        """The memory in NumPy, where an index finds rows and nothing has a gradient; None elsewhere.

        In torch the dozens of small operations of a query take longer than what they compute.
        """
        on_cpu = states.is_cpu and self.keys.is_cpu and states.dtype == torch.float32
        if self.index is None or not on_cpu or torch.is_grad_enabled():
            return None
        if self._fixed is None or self._fixed.index is not self.index:
            self._fixed = FixedMemory.sharing(self)
        return self._fixed.with_setting(*self.setting)

    def with_setting(
        self, strength: float, temperature: float, null_level: float, lending: float = 1.0
    ) -> QueryMemory:
        """Return the same memory with other γ, τ, c and λ; rows are shared."""
        other = QueryMemory.__new__(QueryMemory)
        nn.Module.__init__(other)
        other.texts, other.index, other.lenders = self.texts, self.index, self.lenders
        other._capped, other._fixed = self._capped, self._fixed
        for name, buffer in self.named_buffers():
            other.register_buffer(name, buffer, persistent=False)
        other._set((strength, temperature, null_level, lending))
        return other
