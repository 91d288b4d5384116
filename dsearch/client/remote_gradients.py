"""Answers of a server in a graph: their gradients came with them, or the server computes them on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dsearch.client.remote_output import PooledThere, tensor_like
from dsearch.products import in_full_precision
from dsearch.results import Attention


class AnsweringLayer(Protocol):
    """The parts of a `RemoteSearch` for its backward."""

    client: Any
    collection: str
    head: nn.Module | None
    bias: Tensor | None

    def request_of(self, states: Tensor) -> Any:
        """The options of a request for these states."""
        ...


class DenseByServer(torch.autograd.Function):
    """The dense scores as the server has computed them, with their slopes as derivative."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, dense: Tensor, slopes: Tensor) -> Tensor:
        """The scores."""
        ctx.save_for_backward(slopes)
        return dense.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Σ_h Σ_c ∂L/∂dense_h(c) · slope_h(c)."""
        (slopes,) = ctx.saved_tensors
        with in_full_precision(slopes.device.type):
            return torch.einsum("bhc,bhcd->bd", gradient, slopes), None, None


class AttentionByServer(torch.autograd.Function):
    """Server's answer, with gradients that the server computes on demand."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: AnsweringLayer,
        attention: Attention,
        texts: Sequence[str] | None,
        pooled: PooledThere,
        states: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Context, weights and scores."""
        ctx.layer, ctx.attention, ctx.texts, ctx.pooled = layer, attention, texts, pooled
        ctx.parameters = parameters
        ctx.save_for_backward(states)
        return (
            tensor_like(attention.context, states),
            tensor_like(attention.weights, states),
            tensor_like(attention.scores, states),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """One `vjp` for the states and all parameters."""
        layer, attention, parameters = ctx.layer, ctx.attention, list(ctx.parameters)
        (states,) = ctx.saved_tensors
        context, *of_candidates = (gradient.cpu().numpy() for gradient in gradients)
        counts = [len(line) for line in attention.ids]
        weights, scores = (
            [row[:count] for row, count in zip(rows, counts, strict=True)] for rows in of_candidates
        )
        answered = layer.client.vjp(
            layer.collection,
            None if ctx.texts is None else list(ctx.texts),
            vectors=states.cpu().numpy(),
            context=context,
            weights=weights,
            scores=scores,
            head=layer.head is not None,
            **ctx.pooled.options(),
            **{
                **layer.request_of(states),
                "model": None,
                "draft": attention.draft,
                "stamp": attention.stamp,
            },
        )
        of_parameters = list[Tensor]()
        if layer.bias is not None:
            of_parameters.append(tensor_like(answered.bias, parameters.pop(0)))
        if ctx.pooled.table is not None:
            of_parameters.append(tensor_like(answered.table, parameters.pop(0)))
        if layer.head is not None:
            names = [name for name, _ in layer.head.named_parameters()]
            of_parameters += [
                tensor_like(answered.head[name], parameter)
                for name, parameter in zip(names, parameters, strict=True)
            ]
        return None, None, None, None, tensor_like(answered.states, states), *of_parameters
