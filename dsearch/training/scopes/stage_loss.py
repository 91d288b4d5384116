"""The loss of a ranking by two stages, for an encoder that learns by the tokens of queries too.

    − Σ_d p(d) log softmax_d (l(q, d) + γ M(q, d) / t)          over the candidates of the first stage

p: shares of the grades. Stored tokens of documents stay; γ stays as it starts: it is fitted afterwards, on
queries that the encoder did not learn from. A query without an answer among its candidates has no part.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder.token_batch import TokenBatch
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.engine.snapshot.tokens_of_query import query_tokens_in_graph
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
        dims = examples.snapshot.token_dims
        if dims is None:
            raise InvalidRequest(
                "stage_loss in a collection without tokens; leave it out, or add them: dsearch index -c "
                "COLLECTION --second-stage"
            )
        self._examples = examples
        self._stage = SecondStage(dims).requires_grad_(False)
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
