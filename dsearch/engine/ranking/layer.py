"""`SearchLayer`: a collection as a layer of a network.

Requests are served by the formulas that have gradients (ranker.py). The layer's parameters are those of its
head; the corpus is never part of `state_dict`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dsearch.attention.retrieval.head import Head
from dsearch.attention.transforms import NO_GRAPH, bounded_states, require_numbers
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.ranking.scores import NamedScore, check_texts, check_values
from dsearch.engine.ranking.scoring import EmbedRows, under_autocast_of_now
from dsearch.engine.ranking.whole import Whole
from dsearch.engine.snapshot import QueryTokens, Snapshot
from dsearch.errors import InvalidRequest
from dsearch.products import in_full_precision

Layer = TypeVar("Layer", bound=nn.Module)


class SearchLayer(Ranker, nn.Module):
    """Attention of query states over documents; where it is set, `bias` [positions] adds to their scores.

    Args:
        snapshot: the documents.
        head: the learned part; its parameters are this module's.
        options: of `Ranker`.

    Raises:
        InvalidRequest: as `Ranker`.
    """

    head: Head

    def __init__(self, snapshot: Snapshot, head: Head, **options: Any):
        nn.Module.__init__(self)
        Ranker.__init__(self, snapshot, head, **options)

    def forward(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None = None,
        *,
        embed: EmbedRows | None = None,
        values: Float[Tensor, "positions value_dim"] | None = None,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        """Search with each query state, and with its text for the keyword leg.

        Args:
            query_states: what the encoder gives for a query, or what another network gives in its place. A
                state of length 0, such as a row of padding, scores 0 with every document.
            texts: the words of each query, "" for none; without them the keyword leg finds and adds nothing.
            embed: gives the embeddings of positions in the graph, for gradients into the document encoder;
                the stored ones when None. What it gives is all there is of a document: no passages.
            values: what is pooled, a row for each position of the snapshot: labels, numbers, any field (see
                `Collection.field_values`); gradients reach it. W_V e_d when None.
            tokens: of each query, for the second stage; without them there is only the first.

        Raises:
            DimensionMismatch: states of another length than the embeddings; not one value a position.
            InvalidRequest: states with numbers that are not finite, or longer than a million; another number
                of texts than states; mode "keyword" without texts; a bias that is not finite.

        Under autocast it computes in float32 all the same: rounded to half precision, the best scores tie.
        """
        check_texts(len(query_states), texts, self.mode, None if self.match is None else self.match.field)
        check_values(values, self.snapshot.positions)
        if torch.compiler.is_compiling():
            # FAISS and NumPy have no graph: the layer runs as it is between the compiled parts around it.
            uncompiled: Callable[..., SearchOutput] = torch.compiler.disable(self._search)  # pyright: ignore
            return uncompiled(query_states, texts, embed, values, tokens=tokens, shares=True)
        return self._search(query_states, texts, embed, values, tokens=tokens, shares=True)

    def with_head(self, head: Head, snapshot: Snapshot) -> SearchLayer:
        """Return the same search by another head, with the score of that one where this one has its own."""
        learned = isinstance(self.score, nn.Module)
        inner = learned or (isinstance(self.score, NamedScore) and self.score.name == "dot")
        return SearchLayer(
            snapshot,
            head,
            mode=self.mode,
            candidates=self.candidates,
            depth=self.depth,
            over=self.over,
            hops=self.fixed_hops,
            hop_strength=self.hop_strength,
            score=self.match or ("dot" if inner else self.score),
            pooling=self.pooling,
            temperature=None if learned else self._temperature,
            rerank_candidates=self.rerank_candidates,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A layer with parameters of its own over the same documents, which are not copied."""
        return with_own_parameters(self, memo)

    def __prepare_scriptable__(self) -> NoReturn:
        raise InvalidRequest(NO_GRAPH)

    def _in_own_precision(self, states: Tensor) -> Tensor:
        """States in the precision of the layer, where that loses nothing.

        Raises:
            InvalidRequest: states of float64, and a layer of less; other states than those of a layer in half
                precision; a layer without numbers.
        """
        require_numbers(self.head.log_temperature)
        own = self.head.log_temperature.dtype
        if states.dtype == own:
            return states
        half = (torch.bfloat16, torch.float16)
        if own in half or states.dtype == torch.float64:
            of_states, of_layer = (str(dtype).removeprefix("torch.") for dtype in (states.dtype, own))
            moved = "double" if states.dtype == torch.float64 else "float"
            raise InvalidRequest(
                f"query states of {of_states}, and a layer of {of_layer}; call layer.{moved}(), or give "
                f"states.to(torch.{of_layer})"
            )
        return states.to(own) if states.dtype in half or own == torch.float64 else states

    def whole(self, query_states: Float[Tensor, "batch encoder_dim"], texts: Sequence[str] | None) -> Whole:
        """Return the attention over every document, to be read block by block; without gradients."""
        with torch.no_grad():
            queries, parts = self._after_hops(query_states, texts)
            return self._whole(queries, self.head.fold(queries), parts)

    def _search(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None,
        embed: EmbedRows | None,
        values: Float[Tensor, "positions value_dim"] | None,
        pooled: bool = True,
        shares: bool = False,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        kind = query_states.device.type
        if embed is not None:
            embed = under_autocast_of_now(embed, kind)
        query_states = self._in_own_precision(bounded_states(query_states))
        with in_full_precision(kind):
            return super()._search(query_states, texts, embed, values, pooled, shares, tokens)


def with_own_parameters(layer: Layer, memo: dict[int, Any]) -> Layer:
    """Copy a module for `copy.deepcopy`: its parameters are copied, all else that it holds is shared."""
    other = layer.__class__.__new__(layer.__class__)
    memo[id(layer)] = other
    other.__dict__ = {**layer.__dict__}
    with torch.inference_mode(False):  # tensors of inference never learn
        for kind in ("_parameters", "_buffers", "_modules"):
            other.__dict__[kind] = copy.deepcopy(layer.__dict__[kind], memo)
    return other
