"""Covered mass: the share of the exact softmax over the whole corpus that the candidates hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from dsearch.attention import log_partition
from dsearch.attention.scores import keyword_part
from dsearch.engine.ranking.candidates import SCORES_AT_ONCE, SearchLegs
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.scoring import Scoring
from dsearch.engine.ranking.whole import Whole
from dsearch.engine.snapshot.passages import SnapshotPassages, best_of_documents
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.search_options import COVERAGE_DOCUMENTS
from dsearch.types import Mode


def covered_mass(
    output: SearchOutput, layer: SearchLayer, texts: Sequence[str] | None
) -> Float[Tensor, " batch"]:
    """Σ_h m_h Σ_candidates p_h(d): the share of the exact softmax over the corpus that the candidates hold.

    That of the first stage: a second one looks at no document outside the candidates.

    Compares every document: its cost is that of an exact search. With a query memory it is an estimate from
    a sample in a collection of more than `COVERAGE_DOCUMENTS`: what every document borrows takes minutes.
    """
    snapshot, head = layer.snapshot, layer.head
    width = output.positions.shape[1]
    if width and width >= snapshot.documents == (output.positions != NONE).sum(1).min():
        return torch.ones(len(output.positions))
    if output.recalled is not None and snapshot.documents > COVERAGE_DOCUMENTS:
        legs = SearchLegs(snapshot, texts, mode=layer.mode, candidates=layer.candidates)
        scoring = Scoring(snapshot, head, layer.score)
        remembered = partial(layer.memory.scores, output.recalled)
        folded = output.folded
        every = Whole(scoring, layer.weighing_of(folded), legs, folded, folded, remembered)
        return every.share(output.raw, output.positions)
    temperature = head.temperature
    whole = whole_log_partition(
        snapshot,
        output.folded,
        texts,
        mode=layer.mode,
        keyword_weight=head.keyword_weight,
        temperature=temperature,
        dense_of_all=output.dense_of_all,
        keyword_of_all=output.keyword_of_all,
        memory_of_all=None if output.recalled is None else layer.memory.of_all(output.recalled),
    )
    return mass_of(output, whole, temperature=temperature, mixture=head.mixture_of(output.folded))


def mass_of(
    output: SearchOutput,
    whole: Float[Tensor, "batch heads"],
    *,
    temperature: Float[Tensor, ""],
    mixture: Float[Tensor, "*#batch heads"],
) -> Float[Tensor, " batch"]:
    """The share of the candidates in the softmax whose log Σ exp(logit) over the corpus is `whole`."""
    logits = output.first_raw / temperature
    missing = output.positions == NONE
    if missing.any():
        logits = logits.masked_fill(torch.as_tensor(missing)[:, None], -torch.inf)
    # No document at all: −inf less −inf. Nothing is covered then.
    shares = torch.exp(logits - whole[..., None]).sum(-1).nan_to_num(nan=0.0)
    return (shares * mixture).sum(-1).clamp(max=1.0)


def whole_log_partition(
    snapshot: Snapshot,
    folded: Float[Tensor, "batch heads encoder_dim"],
    texts: Sequence[str] | None,
    *,
    mode: Mode,
    keyword_weight: Float[Tensor, " heads"] | None,
    temperature: Float[Tensor, ""],
    dense_of_all: Float32[np.ndarray, "batch heads positions"] | None = None,
    keyword_of_all: Float32[np.ndarray, "batch positions"] | None = None,
    memory_of_all: Float[Tensor, "batch positions"] | None = None,
) -> Float[Tensor, "batch heads"]:
    """log Σ_d exp(l_h(q, d)) over every document of a state that can be found; −inf where none can.

    Args:
        snapshot: the documents.
        folded: the queries of all heads, against stored embeddings.
        texts: the words of each query; None leaves the keyword part out.
        mode: which parts logits have.
        keyword_weight: w_h; None leaves the keyword part out.
        temperature: t.
        dense_of_all: what every position scores where it is known, without gradients (see `SearchLegs`).
        keyword_of_all: likewise.
        memory_of_all: γ M of every position; None without a query memory.
    """
    batch, heads, _ = folded.shape
    log_sum = None
    if dense_of_all is not None and mode != "keyword" and not torch.is_grad_enabled():
        log_sum = torch.as_tensor(dense_of_all).to(folded) / temperature
    if texts is not None and keyword_weight is not None and mode != "dense":
        every = snapshot.all_keyword_scores(texts) if keyword_of_all is None else keyword_of_all
        bias = keyword_part(keyword_weight, torch.as_tensor(every).to(folded)) / temperature
    elif log_sum is not None and snapshot.excluded is None and memory_of_all is None:
        return log_sum.logsumexp(-1)
    else:
        bias = folded.new_zeros(batch, heads, snapshot.positions)
    if memory_of_all is not None:
        bias = bias + memory_of_all[:, None].to(bias) / temperature
    if snapshot.excluded is not None:
        bias = bias.masked_fill(torch.as_tensor(snapshot.excluded), -torch.inf)
    if mode == "keyword":
        return bias.logsumexp(-1)
    if log_sum is not None:
        return (log_sum + bias).logsumexp(-1)
    queries = folded.flatten(0, 1)
    stored = snapshot.generation.embeddings
    if len(snapshot.fresh):
        stored = np.concatenate([stored, snapshot.fresh.embeddings])
    bias = bias.flatten(0, 1)
    if _at_once(queries, bias, snapshot.passages):
        whole = _log_partition_at_once(queries, stored, snapshot.passages, bias, temperature)
    elif snapshot.passages is None:
        whole = log_partition(queries, stored, bias=bias, temperature=temperature)
    else:
        whole = _log_partition_of_best(queries, stored, snapshot.passages, bias, temperature)
    return whole.reshape(batch, heads)


def _at_once(
    queries: Float[Tensor, "batch encoder_dim"],
    bias: Float[Tensor, "batch documents"],
    passages: SnapshotPassages | None,
) -> bool:
    """Return True if all logits may be in memory at once, as the bias is; blocks copy the corpus."""
    logits = bias.numel() + (0 if passages is None else len(queries) * len(passages))
    return not torch.is_grad_enabled() and queries.device.type == "cpu" and logits <= SCORES_AT_ONCE


def _log_partition_at_once(
    queries: Float[Tensor, "batch encoder_dim"],
    stored: Float32[np.ndarray, "documents encoder_dim"],
    passages: SnapshotPassages | None,
    bias: Float[Tensor, "batch documents"],
    temperature: Float[Tensor, ""],
) -> Float[Tensor, " batch"]:
    """log Σ_d exp(max_p q · e_p / t + bias_d), each passage scored where it lies."""
    numbers = queries.detach().numpy()
    products = numbers @ stored.T
    if passages is not None:
        products = best_of_documents(products, passages.scores(numbers), passages.owners)
    return (torch.as_tensor(products) / temperature + bias).logsumexp(1)


def _log_partition_of_best(
    queries: Float[Tensor, "batch encoder_dim"],
    stored: Float32[np.ndarray, "documents encoder_dim"],
    passages: SnapshotPassages,
    bias: Float[Tensor, "batch documents"],
    temperature: Float[Tensor, ""],
) -> Float[Tensor, " batch"]:
    """log Σ_d exp(max_p q · e_p / t + bias_d): long documents apart from the others, block by block."""
    short = bias.clone()
    short[:, torch.as_tensor(passages.long)] = -torch.inf
    whole = log_partition(queries, stored, bias=short, temperature=temperature)
    for long, further in passages.blocks():
        first = queries @ torch.as_tensor(stored[long]).to(queries).T
        others = queries @ torch.as_tensor(passages.embeddings(further)).to(queries).T
        at = torch.as_tensor(np.searchsorted(long, passages.owners[further])).expand_as(others)
        best = first.scatter_reduce(1, at, others, "amax")
        logits = best / temperature + bias[:, torch.as_tensor(long)]
        whole = torch.logaddexp(whole, logits.logsumexp(1))
    return whole
