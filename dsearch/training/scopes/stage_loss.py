"""The loss of a ranking by two stages, for an encoder that learns by tokens too.

    − Σ_d p(d) log softmax_d (l(q, d) + γ M(q, d) / t)          over the candidates of the first stage

p: shares of the grades. γ stays as it starts: it is fitted afterwards, on queries that the encoder did not
learn from. A query without an answer among its candidates has no part. In scope query the stored tokens of
documents stay (`StageLoss`); in scope full both sides are encoded in the graph (`PoolMatches`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.late_interaction import Interactions
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder.encoder import TokenBatch
from dsearch.engine import Snapshot
from dsearch.engine.indexing.tokens import is_of_word
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.snapshot import NONE, query_tokens_in_graph
from dsearch.errors import InvalidRequest
from dsearch.training.data.examples import Examples
from dsearch.training.relevant import Relevant
from dsearch.types import Mode


class StageLoss:
    """The loss, over the documents of some examples.

    Args:
        examples: judged queries; their snapshot has tokens.
        keywords: whether keywords have a part in the first stage.

    Raises:
        InvalidRequest: the documents have no tokens.
    """

    def __init__(self, examples: Examples, *, keywords: bool):
        self._examples = examples
        self._stage = _stage_of(examples.snapshot)
        self._mode: Mode = "hybrid" if keywords else "dense"

    def __call__(self, head: Head, encoded: TokenBatch, which: list[int]) -> Float[Tensor, ""]:
        """The mean over the queries at these indices, which the encoder has encoded in the graph."""
        examples = self._examples
        texts = [examples.texts[at] for at in which]
        parts = zip(encoded.states, encoded.spans, texts, strict=True)
        tokens = [query_tokens_in_graph(*part, examples.snapshot) for part in parts]
        stage = self._stage.to(head.log_temperature.device)
        layer = SearchLayer(examples.snapshot, head.reranking(stage), mode=self._mode, hops=1, stages=2)
        states = encoded.embeddings.to(head.log_temperature.device)
        output = layer(states, texts, tokens=tokens)
        missing = output.positions == NONE
        if examples.hidden is not None:
            for row, at in enumerate(which):
                missing[row] |= np.isin(output.positions[row], examples.hidden[at])
        grades = Relevant([examples.relevant[at] for at in which]).gains(output.positions)
        grades = np.where(missing, 0.0, grades)
        target = torch.as_tensor(grades / np.maximum(grades.sum(1, keepdims=True), 1e-12))
        out = torch.as_tensor(missing).to(output.scores.device)
        # Filled before the division too: by −inf the temperature's gradient would be NaN.
        logits = (output.scores.masked_fill(out, 0.0) / head.temperature).masked_fill(out, -torch.inf)
        log_shares = logits.log_softmax(1)
        lost = torch.where(target.to(logits) > 0, target.to(logits) * log_shares, 0.0)
        return -lost.sum() / len(which)


class PoolMatches:
    """γ M of each query of a batch with each document of a pool, both encoded in the graph.

    Args:
        snapshot: has the projection of tokens, and the words that are no terms.

    Raises:
        InvalidRequest: its documents have no tokens.
    """

    def __init__(self, snapshot: Snapshot):
        self._snapshot, self._stage = snapshot, _stage_of(snapshot)
        self._stop_words = frozenset(snapshot.keyword.tokenizer.stop_words)

    def __call__(
        self,
        queries: TokenBatch,
        query_texts: Sequence[str],
        documents: TokenBatch,
        document_texts: Sequence[str],
    ) -> Float[Tensor, "queries pool"]:
        """The term of every pair, with documents' tokens as they are before rounding; 0 without a word."""
        by_document = [
            states[torch.as_tensor(self._of_words(text, spans), device=states.device)]
            for states, spans, text in zip(documents.states, documents.spans, document_texts, strict=True)
        ]
        counts = torch.tensor([len(states) for states in by_document], device=by_document[0].device)
        assert self._snapshot.tokens is not None
        every = torch.cat(by_document)
        projection = torch.as_tensor(self._snapshot.tokens.codec.projection).to(every)
        tokens = torch.nn.functional.normalize(every @ projection.mT, dim=-1)
        stage = self._stage.to(every)
        steps = tokens.new_ones(tokens.shape[1])
        rows: list[Tensor] = []
        for states, spans, text in zip(queries.states, queries.spans, query_texts, strict=True):
            query = query_tokens_in_graph(states, spans, text, self._snapshot)
            weights = torch.as_tensor(query.weights).to(tokens)
            of_pool = stage.matches(
                Interactions(torch.as_tensor(query.states), weights, tokens, steps, counts)
            )
            rows.append(stage.strength * of_pool.sharp)
        return torch.stack(rows)

    def _of_words(self, text: str, spans: Int64[np.ndarray, "tokens 2"]) -> Int64[np.ndarray, " words"]:
        wanted = [is_of_word(text, start, end, self._stop_words) for start, end in spans.tolist()]
        return np.flatnonzero(np.array(wanted, bool))


def _stage_of(snapshot: Snapshot) -> SecondStage:
    """An untrained second stage for the tokens of a state.

    Raises:
        InvalidRequest: its documents have none.
    """
    if snapshot.tokens is None:
        raise InvalidRequest(
            "stage_loss in a collection without tokens; leave it out, or add them: dsearch index -c "
            "COLLECTION --second-stage"
        )
    return SecondStage().requires_grad_(False)
