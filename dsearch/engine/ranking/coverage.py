"""Covered mass: the share of the exact softmax over the whole corpus that the candidates hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, Float32

from dsearch.attention.arrays import (
    Array,
    as_like,
    at_most,
    fill,
    gradients_enabled,
    is_array,
    keyword_part,
    logsumexp,
    numbers_of,
    on_device_of,
    zeros,
)
from dsearch.attention.retrieval.kernel import Weighing, raw_scores
from dsearch.engine.ranking.candidates import SCORES_AT_ONCE, SearchLegs
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.ranking.scoring import Scoring
from dsearch.engine.snapshot import NONE, Snapshot, SnapshotPassages, best_of_documents
from dsearch.search_options import COVERAGE_DOCUMENTS
from dsearch.types import Mode


def covered_mass(output: SearchOutput, layer: Ranker, texts: Sequence[str] | None) -> Float[Array, " batch"]:
    """Σ_h m_h Σ_candidates p_h(d): the share of the exact softmax over the corpus that the candidates hold.

    That of the first stage: a second one looks at no document outside the candidates.

    Compares every document: its cost is that of an exact search. With a query memory it is an estimate from
    a sample in a collection of more than `COVERAGE_DOCUMENTS`: what every document borrows takes minutes.
    """
    snapshot, head = layer.snapshot, layer.head
    width = output.positions.shape[1]
    if width and width >= snapshot.documents == (output.positions != NONE).sum(1).min():
        return zeros((len(output.positions),), output.scores) + 1
    if output.recalled is not None and snapshot.documents > COVERAGE_DOCUMENTS:
        return _sampled(output, layer, texts)
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


def _sampled(output: SearchOutput, layer: Ranker, texts: Sequence[str] | None) -> Float[Array, " batch"]:
    """The estimate from a sample of documents, which torch computes."""
    import torch

    from dsearch.engine.ranking.whole import Whole

    legs = SearchLegs(layer.snapshot, texts, mode=layer.mode, candidates=layer.candidates)
    scoring = Scoring(layer.snapshot, layer.head, layer.score)
    assert output.recalled is not None
    remembered = partial(layer.memory.scores, output.recalled)
    weighing = layer.weighing_of(output.folded)
    weighing = weighing._replace(
        mixture=torch.as_tensor(weighing.mixture), temperature=torch.as_tensor(weighing.temperature)
    )
    folded = torch.as_tensor(output.folded)
    every = Whole(scoring, weighing, legs, folded, folded, remembered)
    share = every.share(torch.as_tensor(output.raw), output.positions)
    return as_like(numbers_of(share), output.scores)


def mass_of(
    output: SearchOutput,
    whole: Float[Array, "batch heads"],
    *,
    temperature: Float[Array, ""],
    mixture: Float[Array, "*#batch heads"],
) -> Float[Array, " batch"]:
    """The share of the candidates in the softmax whose log Σ exp(logit) over the corpus is `whole`."""
    raw, present = output.first_raw, output.sharing != NONE
    mask = None if present.all() else on_device_of(present, raw)
    weighing = Weighing(raw.shape[1], mixture, temperature, partition=whole)
    return at_most(weighing.weights(raw, mask).mixed.sum(-1), 1.0)


def whole_log_partition(
    snapshot: Snapshot,
    folded: Float[Array, "batch heads encoder_dim"],
    texts: Sequence[str] | None,
    *,
    mode: Mode,
    keyword_weight: Float[Array, " heads"] | None,
    temperature: Float[Array, ""],
    dense_of_all: Float32[np.ndarray, "batch heads positions"] | None = None,
    keyword_of_all: Float32[np.ndarray, "batch positions"] | None = None,
    memory_of_all: Float[Array, "batch positions"] | None = None,
) -> Float[Array, "batch heads"]:
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
    dense, keyword = None, None
    if mode != "keyword" and dense_of_all is not None and not gradients_enabled():
        dense = as_like(dense_of_all, folded)
    if texts is not None and keyword_weight is not None and mode != "dense":
        every = snapshot.all_keyword_scores(texts) if keyword_of_all is None else keyword_of_all
        keyword = keyword_part(keyword_weight, as_like(every, folded))
    memory = None if memory_of_all is None else as_like(memory_of_all, folded)
    known = zeros((batch, heads, snapshot.positions), folded) if dense is None else dense
    bias = raw_scores(known, keyword, memory) / temperature
    if snapshot.excluded is not None:
        bias = fill(bias, on_device_of(snapshot.excluded, bias), -math.inf)
    if mode == "keyword" or dense is not None:
        return logsumexp(bias, -1)
    queries = folded.reshape(batch * heads, folded.shape[-1])
    stored = snapshot.generation.embeddings
    if len(snapshot.fresh):
        stored = np.concatenate([stored, snapshot.fresh.embeddings])
    bias = bias.reshape(batch * heads, snapshot.positions)
    if _at_once(queries, bias, snapshot.passages):
        whole = _log_partition_at_once(queries, stored, snapshot.passages, bias, temperature)
        return whole.reshape(batch, heads)
    if is_array(folded):  # blocks of a large collection are computed by torch
        import torch

        queries, bias, temperature = (torch.as_tensor(part) for part in (queries, bias, temperature))
    from dsearch.attention.blockwise.exact import log_partition

    if snapshot.passages is None:
        whole = log_partition(queries, stored, bias=bias, temperature=temperature)
    else:
        whole = _log_partition_of_best(queries, stored, snapshot.passages, bias, temperature)
    return (
        as_like(numbers_of(whole), folded).reshape(batch, heads)
        if is_array(folded)
        else whole.reshape(batch, heads)
    )


def _at_once(
    queries: Float[Array, "batch encoder_dim"],
    bias: Float[Array, "batch documents"],
    passages: SnapshotPassages | None,
) -> bool:
    """Return True if all logits may be in memory at once, as the bias is; blocks copy the corpus."""
    logits = math.prod(bias.shape) + (0 if passages is None else len(queries) * len(passages))
    on_host = is_array(queries) or queries.device.type == "cpu"
    return not gradients_enabled() and on_host and logits <= SCORES_AT_ONCE


def _log_partition_at_once(
    queries: Float[Array, "batch encoder_dim"],
    stored: Float32[np.ndarray, "documents encoder_dim"],
    passages: SnapshotPassages | None,
    bias: Float[Array, "batch documents"],
    temperature: Float[Array, ""],
) -> Float[Array, " batch"]:
    """log Σ_d exp(max_p q · e_p / t + bias_d), each passage scored where it lies."""
    numbers = numbers_of(queries)
    products = numbers @ stored.T
    if passages is not None:
        products = best_of_documents(products, passages.scores(numbers), passages.owners)
    return logsumexp(as_like(products, queries) / temperature + bias, 1)


def _log_partition_of_best(
    queries: Float[Array, "batch encoder_dim"],
    stored: Float32[np.ndarray, "documents encoder_dim"],
    passages: SnapshotPassages,
    bias: Float[Array, "batch documents"],
    temperature: Float[Array, ""],
) -> Float[Array, " batch"]:
    """log Σ_d exp(max_p q · e_p / t + bias_d): long documents apart from the others, block by block."""
    import torch

    from dsearch.attention.blockwise.exact import log_partition

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
