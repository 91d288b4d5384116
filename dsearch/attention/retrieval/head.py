"""`Head`: the learned part of the model between encoder and ranking.

    q_h  = |e_q| · unit(e_q + f_h(e_q))         query projection of head h, see below
    k    = e_d + Δ_K e_d = W_K e_d              key projection: linear, so it folds into the query
    v    = e_d + Δ_V e_d = W_V e_d              value projection
    l_h  = (q_h · k + w_h · b) / t              logits; b is the keyword score, w_h its weight
    weight = Σ_h m_h softmax(l_h)               mixture of heads, after the softmax; m_h may follow the query

The query projection has one of three forms (`query_side`):

    linear       f(e) = Δ e                      a full matrix, of one head
    low-rank     f_h(e) = A_h B_h e              Hu et al. 2021 (arXiv:2106.09685)
    mlp          f_h(e) = A_h gelu(B_h e + c_h)  a residual network with one hidden layer

All start at zero: an untrained head ranks as the cosine similarity of the encoder, plus the keyword score.
A_h is random and B_h = 0, so several heads diverge; equal starts would have equal gradients forever. Keys
have to stay linear because they are stored in the index; queries need not, since they are computed at query
time. One key space for all query heads is Shazeer 2019 (arXiv:1911.02150).

The query keeps its length: a linear Δ could lower the temperature by growing, and two parameters with the
same effect do not train well.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dsearch.attention.excitation import HeadExcitation
from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.fixed_head import START_KEYWORD_WEIGHT, START_TEMPERATURE, HeadFormulas
from dsearch.attention.retrieval.learned_score import score_of_tensors
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.attention.scores import Score
from dsearch.errors import InvalidRequest, amount

MAX_OUTPUT_DIM = 4096
MAX_EXCITATION = 1024
QUERY_SIDES = ("linear", "low-rank", "mlp")
_DELTAS = ("query_delta", "query_in", "query_bias", "key_delta", "value_delta")


class Head(HeadFormulas, nn.Module):
    """The learned part of a search: projections, keyword weights, temperature, mixture, hop strength.

    Attributes:
        bm25: (k1, b) of the keyword score, chosen by `dsearch tune` rather than by gradient; None for those
            of the index.
        memory: judged queries and their answers, see memory.py; None if the head has none.
        second_stage: learned late interaction, see second_stage.py; None if the head has none.
        score: score with learned parameters in place of the inner product, under its name; see
            learned_score.py; empty if the head has none.
        excitation: shares of the heads by the query, see excitation.py; None for constant shares.
        output: output projection of the pooled context, o = W_O context + b; None if the head has none.

    Args:
        encoder_dim: length of an embedding; keys and values have the same length.
        heads: number of query heads; they share the keys.
        rank: rank of each head's query projection, or the width of its hidden layer; unused if linear.
        seed: random seed of the factors A_h.
        query_side: form of the query projection, of `QUERY_SIDES`; None: linear for one head, low-rank for
            several.

    Raises:
        InvalidRequest: a size below 1; a query side that is none, or linear with several heads.
    """

    def __init__(
        self,
        encoder_dim: int,
        *,
        heads: int = 1,
        rank: int = 32,
        seed: int = 0,
        query_side: str | None = None,
    ):
        super().__init__()
        for name, value in {"encoder_dim": encoder_dim, "heads": heads, "rank": rank}.items():
            if value < 1:
                raise InvalidRequest(f"{name}={value}; use an integer of at least 1")
        self.encoder_dim, self.heads, self.rank, self.seed = encoder_dim, heads, rank, seed
        self.query_side = checked_query_side(query_side, heads)
        square = (encoder_dim, encoder_dim)
        if self.query_side == "linear":
            self.query_delta = nn.Parameter(torch.zeros(1, *square))
        else:
            generator = torch.Generator().manual_seed(seed)
            factors = torch.randn(heads, encoder_dim, rank, generator=generator) / math.sqrt(rank)
            self.query_out = nn.Parameter(factors)
            self.query_in = nn.Parameter(torch.zeros(heads, rank, encoder_dim))
        if self.query_side == "mlp":
            self.query_bias = nn.Parameter(torch.zeros(heads, rank))
        self.key_delta = nn.Parameter(torch.zeros(square))
        self.value_delta = nn.Parameter(torch.zeros(square))
        self.keyword_weight = nn.Parameter(torch.full((heads,), START_KEYWORD_WEIGHT))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(START_TEMPERATURE)))
        self.mixture_logits = nn.Parameter(torch.zeros(heads))
        self.hop_strength = nn.Parameter(torch.zeros(()))
        self.bm25: Tensor | None
        self.register_buffer("bm25", None)
        self.memory: QueryMemory | None
        self.register_module("memory", None)
        self.second_stage: SecondStage | None
        self.register_module("second_stage", None)
        self.score = nn.ModuleDict()
        self.output: nn.Linear | None
        self.register_module("output", None)
        self.excitation: HeadExcitation | None
        self.register_module("excitation", None)
        self._settled: dict[str, tuple[int, int]] = {}  # projections that are zero → `_state_of` them then

    def settle(self) -> Head:
        """Prepare for search only, and return itself: projections that change nothing are skipped.

        Value projections change nothing in most heads, and all projections in an untrained one. The result of
        the check holds for the present parameters and with gradients off: a copy, or a head that is trained
        or loaded afterwards, applies every projection.
        """
        deltas = {name: parameter for name, parameter in self.named_parameters() if name in _DELTAS}
        self._settled = {name: _state_of(delta) for name, delta in deltas.items() if not delta.any()}
        return self

    def _changes_nothing(self, name: str) -> bool:
        state = None if torch.is_grad_enabled() else self._settled.get(name)
        return state is not None and state == _state_of(getattr(self, name))

    def open_excitation(self, width: int = 16) -> HeadExcitation:
        """Let each query move the shares of the heads; return the part that learns, at its start.

        Raises:
            InvalidRequest: a head with one query head, or a width out of range.
        """
        if self.heads < 2 or not 1 <= width <= MAX_EXCITATION:
            raise InvalidRequest(
                f"an excitation of {amount(self.heads, 'head')} with width={width}; use 2 or more heads, "
                "and 1 to "
                f"{MAX_EXCITATION}"
            )
        self.excitation = HeadExcitation(self.encoder_dim, self.heads, width, self.seed).to(self.key_delta)
        return self.excitation

    def weigh_keywords(self, k1: float, b: float) -> None:
        """Choose k1 and b of the keyword score."""
        self.bm25 = torch.tensor([k1, b], device=self.keyword_weight.device)

    def open_output(self, output_dim: int) -> nn.Linear:
        """Project the pooled context to `output_dim` numbers; return the projection, at its start."""
        if not 1 <= output_dim <= MAX_OUTPUT_DIM:
            raise InvalidRequest(f"output_dim={output_dim}; use 1 to {MAX_OUTPUT_DIM}")
        self.output = nn.Linear(self.encoder_dim, output_dim).to(self.key_delta)
        return self.output

    @property
    def learned_score(self) -> Score | None:
        """The learned score; None for the inner product."""
        return next(iter(self.score.values()), None)

    def scoring_by(self, score: nn.ModuleDict) -> Head:
        """Return a head with this learned score that shares all other parameters."""
        other = copy(self)
        other._modules = {**self._modules, "score": score}
        return other

    def outputs(self, contexts: Float[Tensor, "*batch value_dim"]) -> Float[Tensor, "*batch output_dim"]:
        """W_O context + b; the context itself without a projection."""
        return contexts if self.output is None else self.output(contexts)

    def remembering(self, memory: QueryMemory) -> Head:
        """Return a head with this memory that shares all other parameters."""
        other = copy(self)
        other._modules = {**self._modules, "memory": memory}
        return other

    def reranking(self, second_stage: SecondStage | None) -> Head:
        """Return a head with this second stage that shares all other parameters."""
        other = copy(self)
        other._modules = {**self._modules, "second_stage": second_stage}
        return other

    def valuing(self, other: Head) -> Head:
        """Return a head with the values of another one, W_V, W_O and b, that shares all other parameters."""
        copied = copy(self)
        copied._parameters = {**self._parameters, "value_delta": other.value_delta}
        copied._modules = {**self._modules, "output": other.output}
        copied._settled = {name: of for name, of in self._settled.items() if name != "value_delta"}
        return copied

    def own_tensors(self) -> dict[str, Tensor]:
        """The state without the memory, which is stored beside it: detached, on the CPU.

        Parametrized tensors (`torch.nn.utils.parametrize`) are as they are computed.
        """
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.state_dict().items():
            owner, parametrized, rest = name.partition("parametrizations.")
            if parametrized:
                own = rest.split(".")[0]
                name, tensor = owner + own, getattr(self.get_submodule(owner.rstrip(".")), own)
            if not name.startswith("memory."):
                tensors[name] = tensor.detach().cpu().contiguous()
        return tensors

    def start_from(self, other: Head) -> None:
        """Take over a tuned search: keyword weight, k1 and b, and hop strength."""
        with torch.no_grad():
            self.keyword_weight.fill_(other.keyword_weight.mean().item())
            self.hop_strength.copy_(other.hop_strength)
        self.bm25 = None if other.bm25 is None else other.bm25.clone().to(self.keyword_weight.device)

    def config(self) -> dict[str, Any]:
        """Arguments for `Head(**config)` that give a head of the same shape."""
        shape: dict[str, Any] = {
            "encoder_dim": self.encoder_dim,
            "heads": self.heads,
            "rank": self.rank,
            "seed": self.seed,
        }
        if self.query_side != checked_query_side(None, self.heads):
            shape["query_side"] = self.query_side
        return shape

    def query_parameters(self) -> list[nn.Parameter]:
        """Parameters of the query projection."""
        return [parameter for name, parameter in self.named_parameters() if name.startswith("query_")]

    def _moved_by(
        self, embeddings: Float[Tensor, "batch encoder_dim"]
    ) -> Float[Tensor, "batch heads encoder_dim"]:
        """f_h(e)."""
        if self.query_side == "linear":
            return (embeddings @ self.query_delta[0].mT).unsqueeze(1)
        if self.query_side == "low-rank":
            return torch.einsum("hir,hrj,bj->bhi", self.query_out, self.query_in, embeddings)
        hidden = torch.einsum("hrj,bj->bhr", self.query_in, embeddings) + self.query_bias
        return torch.einsum("hir,bhr->bhi", self.query_out, torch.nn.functional.gelu(hidden))

    def key_projection(self) -> Float[Tensor, "key_dim encoder_dim"]:
        """W_K = I + Δ_K."""
        return torch.eye(self.encoder_dim).to(self.key_delta) + self.key_delta

    def distance_from_identity(self) -> Float[Tensor, ""]:
        """Σ |Δ|² over all projections, c² of a hidden layer included: what weight decay pulls to zero."""
        if self.query_side == "linear":
            query = self.query_delta.square().sum()
        else:
            query = (self.query_out @ self.query_in).square().sum()
        if self.query_side == "mlp":
            query = query + self.query_bias.square().sum()
        if self.excitation is not None:
            query = query + self.excitation.excite.square().sum()
        return query + self.key_delta.square().sum() + self.value_delta.square().sum()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *further: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Optional parts are made first, in the shape that the file has: torch fills only what exists. Files
        # of older releases, and heads without a part, have none of its tensors.
        chosen: Tensor | None = state_dict.get(f"{prefix}bm25")
        self.bm25 = None if chosen is None else torch.empty_like(chosen)
        reranker = None
        if f"{prefix}second_stage.reranker_weight" in state_dict:  # its name is not among the tensors
            present = None if self.second_stage is None else self.second_stage.reranker
            reranker = present or RerankerIdentity("", "", "")
        has_stage = f"{prefix}second_stage.strength" in state_dict
        self.second_stage = SecondStage(reranker=reranker) if has_stage else None
        names = [name for name in state_dict if name.startswith(f"{prefix}score.")]
        tensors = ((name.removeprefix(f"{prefix}score."), state_dict[name]) for name in names)
        self.score = score_of_tensors(tensors, self.encoder_dim) or nn.ModuleDict()
        weight: Tensor | None = state_dict.get(f"{prefix}output.weight")
        self.output = None
        if weight is not None:
            self.open_output(len(weight))
        squeeze: Tensor | None = state_dict.get(f"{prefix}excitation.squeeze")
        self.excitation = None
        if squeeze is not None:
            self.open_excitation(len(squeeze))
        super()._load_from_state_dict(state_dict, prefix, *further)  # pyright: ignore[reportUnknownMemberType]


def checked_query_side(query_side: str | None, heads: int) -> str:
    """Check the form of the query projection for this number of heads; None gives the default.

    Raises:
        InvalidRequest: not one of `QUERY_SIDES`, or linear with several heads, which would stay alike.
    """
    if query_side is None:
        return "linear" if heads == 1 else "low-rank"
    if query_side not in QUERY_SIDES:
        raise InvalidRequest(f"query_side={query_side!r}; use one of {', '.join(QUERY_SIDES)}")
    if query_side == "linear" and heads > 1:
        raise InvalidRequest(
            f"query_side='linear' with {amount(heads, 'head')}, which would stay alike; use low-rank or mlp"
        )
    return query_side


def _state_of(parameter: Tensor) -> tuple[int, int]:
    """Identify a tensor's present content: its address and its version counter."""
    return parameter.data_ptr(), parameter._version
