"""From attention over positions to hits with ids and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import entropy, log_partition
from dsearch.engine.explaining import Explain
from dsearch.engine.highlighting import ShowPieces
from dsearch.engine.layer import SearchLayer, SearchOutput
from dsearch.engine.snapshot import NONE
from dsearch.store import Store
from dsearch.types import AttentionSummary, Document, Hit


@dataclass(frozen=True, slots=True)
class Page:
    """Which hits of each ranking to give: those from `offset` that reach both thresholds."""

    limit: int
    offset: int
    score_threshold: float | None = None
    weight_threshold: float | None = None

    def reached(self, found: SearchOutput) -> Int64[np.ndarray, " batch"]:
        """How many candidates of each query reach the thresholds: the first ones, as they are sorted."""
        reach = found.positions != NONE
        if self.score_threshold is not None:
            reach = reach & (_numbers(found.scores) >= self.score_threshold)
        if self.weight_threshold is not None:
            reach = reach & (_numbers(found.weights) >= self.weight_threshold)
        return np.logical_and.accumulate(reach, axis=1).sum(axis=1)


def hits_of(
    found: SearchOutput,
    layer: SearchLayer,
    store: Store,
    page: Page,
    *,
    explain: Explain | None = None,
    highlight: ShowPieces | None = None,
) -> list[list[Hit]]:
    """The hits of each query, ranks counted from 1; all documents are read in one pass."""
    stops = np.minimum(page.reached(found), page.offset + page.limit).tolist()
    rows = layer.snapshot.rows(found.positions[:, : max(stops, default=0)])
    shown = [row[page.offset : stop] for row, stop in zip(rows, stops, strict=True)]
    documents = _documents(store, np.concatenate([*shown, np.empty(0, np.int64)]))
    weights, scores = _numbers(found.weights), _numbers(found.scores)
    hits: list[list[Hit]] = []
    for query, stop in enumerate(stops):
        answer: list[Hit] = []
        for column in range(page.offset, stop):
            document = documents[int(rows[query, column])]
            answer.append(
                Hit(
                    rank=column + 1,
                    id=document.id,
                    weight=float(weights[query, column]),
                    score=float(scores[query, column]),
                    title=document.title,
                    text=document.text,
                    metadata=document.metadata,
                    explain=None if explain is None else explain(query, column),
                    highlights=None if highlight is None else highlight(query, document),
                )
            )
        hits.append(answer)
    return hits


def summaries_of(
    found: SearchOutput, layer: SearchLayer, texts: Sequence[str] | None, *, coverage: bool
) -> list[AttentionSummary]:
    """How each query's attention was spread; with `coverage` also its share of the exact softmax."""
    covered = _numbers(covered_mass(found, layer, texts)) if coverage else None
    spread = _numbers(entropy(found.weights))
    counts = (found.positions != NONE).sum(axis=1)
    return [
        AttentionSummary(
            candidates=int(counts[query]),
            entropy=abs(float(spread[query])),  # of a one-hot distribution it comes as −0
            covered_mass=None if covered is None else float(covered[query]),
        )
        for query in range(len(counts))
    ]


def covered_mass(
    found: SearchOutput, layer: SearchLayer, texts: Sequence[str] | None
) -> Float[Tensor, " batch"]:
    """Σ_h m_h Σ_candidates p_h(d): the share of the exact softmax over the corpus that the candidates hold.

    Compares every document: its cost is that of an exact search.
    """
    snapshot, head = layer.snapshot, layer.head
    if found.positions.shape[1] and (found.positions != NONE).sum(1).min() == snapshot.documents:
        return torch.ones(len(found.positions))
    batch, heads, _ = found.folded.shape
    temperature = head.temperature
    bias = torch.zeros(batch, heads, snapshot.positions).to(found.folded)
    if texts is not None and layer.mode != "dense":
        keyword = torch.as_tensor(snapshot.all_keyword_scores(texts)).to(bias)
        bias = head.keyword_weight[:, None] * keyword[:, None] / temperature
    if snapshot.excluded is not None:
        bias = bias.masked_fill(torch.as_tensor(snapshot.excluded), -torch.inf)
    queries = found.folded.flatten(0, 1)
    if layer.mode == "keyword":
        queries = torch.zeros_like(queries)
    stored = snapshot.generation.embeddings
    if len(snapshot.fresh):
        stored = np.concatenate([stored, snapshot.fresh.embeddings])
    whole = log_partition(queries, stored, bias=bias.flatten(0, 1), temperature=temperature)
    logits = (found.dense + found.keyword) / temperature
    mask = torch.as_tensor(found.positions != NONE)[:, None]
    part = logits.masked_fill(~mask, -torch.inf).logsumexp(-1)
    # No document at all: −inf less −inf. Nothing is covered then.
    shares = torch.nan_to_num(torch.exp(part - whole.reshape(batch, heads)))
    return torch.sum(shares * head.mixture, dim=-1).clamp(max=1.0)


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _documents(store: Store, rows: np.ndarray) -> dict[int, Document]:
    wanted = np.unique(rows[rows != NONE])
    return dict(zip(wanted.tolist(), store.documents(wanted), strict=True))
