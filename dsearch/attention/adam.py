"""`Adam`: steps of Adam (Kingma and Ba 2015) by torch's own kernel, without its class of optimizers.

The first optimizer of a process imports torch's compiler: 800 modules and four seconds of CPU, for which
every training would wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim.adam import adam

Moments: TypeAlias = Mapping[int, Mapping[str, Tensor]]  # number of a parameter → step, exp_avg, exp_avg_sq

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of the paper, section 2


class Adam:
    """Adam with the defaults of its paper.

    Args:
        groups: parameters and their learning rates: `{"params": […], "lr": …}`; a changed `lr` counts from
            the next step.
        fused: whether one kernel updates all parameters.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], *, fused: bool = False):
        self.groups: list[dict[str, Any]] = [{**group, "params": list(group["params"])} for group in groups]
        self.parameters: list[Tensor] = [parameter for group in self.groups for parameter in group["params"]]
        self._fused = fused
        self._moments: dict[int, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step with every parameter that has a gradient."""
        start = 0
        for group in self.groups:
            numbers = range(start, start := start + len(group["params"]))
            learning = [number for number in numbers if self.parameters[number].grad is not None]
            if not learning:
                continue
            parameters = [self.parameters[number] for number in learning]
            moments = [self._moments_of(number) for number in learning]
            adam(
                parameters,
                [parameter.grad for parameter in parameters if parameter.grad is not None],
                [of["exp_avg"] for of in moments],
                [of["exp_avg_sq"] for of in moments],
                [],
                [of["step"] for of in moments],
                fused=self._fused,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=group["lr"],
                weight_decay=0.0,
                eps=_EPSILON,
                maximize=False,
            )

    def moments(self) -> Moments:
        """The state after the last step, as it is in memory: copy what has to outlast the next one."""
        return self._moments

    def load_moments(self, moments: Moments) -> None:
        """Go on from the state of another one with the same parameters, copied to their devices."""
        self._moments = {}
        for number, of in moments.items():
            like = self.parameters[number]
            step = of["step"].to(like.device if self._fused else "cpu", torch.float32, copy=True)
            averages = {name: of[name].to(like, copy=True) for name in ("exp_avg", "exp_avg_sq")}
            self._moments[number] = {"step": step, **averages}

    def _moments_of(self, number: int) -> dict[str, Tensor]:
        if number not in self._moments:
            like = self.parameters[number]
            step = torch.zeros((), device=like.device if self._fused else "cpu")
            averages = {name: torch.zeros_like(like) for name in ("exp_avg", "exp_avg_sq")}
            self._moments[number] = {"step": step, **averages}
        return self._moments[number]
