"""`lessons_of`: what each training query pulled at, kept with the model for `explain` (engine/lessons.py)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dsearch.attention.fusion_gate import keyword_part
from dsearch.attention.head import Head
from dsearch.engine.lessons import Lessons
from dsearch.products import product
from dsearch.training.examples import Examples
from dsearch.training.options import TrainingOptions
from dsearch.training.passages import FurtherPassages
from dsearch.training.ranking import KeywordScores, corpus_embeddings
from dsearch.training.relevance import padded

MOST = 10_000  # queries that are kept, drawn where there are more: 30 MB at 384 numbers
_AT_A_TIME = 32


@torch.no_grad()
def lessons_of(examples: Examples, start: Head, options: TrainingOptions) -> Lessons:
    """The pull of each example at the head that training started from.

    r_i = w_i Σ_d (p_i(d) − a_i(d)) e_d, with a_i over what the objective's softmax is over: the whole corpus,
    or what any example judges for "judged". Of long documents the first passage stands for e_d. The pairwise
    and in-batch objectives pull alike at the first step, though not by the same amounts.

    Args:
        examples: what was trained on.
        start: where from.
        options: how.
    """
    if len(examples) > MOST:
        drawn = np.random.default_rng(options.seed).choice(len(examples), MOST, replace=False)
        examples = examples.subset(np.sort(drawn).tolist())
    examples = examples.weighed(start)
    corpus = corpus_embeddings(examples.snapshot)
    further = FurtherPassages.of(examples.snapshot, corpus)
    keyword = KeywordScores(examples) if options.keywords else None
    positions, grades = padded(examples.relevant)
    target = torch.as_tensor(grades / grades.sum(1, keepdims=True))
    out = _outside(examples, positions, options)
    pulls = torch.zeros(len(examples), corpus.shape[1])
    for first in range(0, len(examples), _AT_A_TIME):
        batch = torch.arange(first, min(first + _AT_A_TIME, len(examples)))
        folded = start.fold(start.queries(torch.as_tensor(examples.states[batch.numpy()])))
        scores = product(folded, corpus)
        if further is not None:
            scores, _ = further.taken(folded, scores)
        if keyword is not None:
            weights = start.keyword_weights(len(batch), keyword.features(batch, start))
            scores = scores + keyword_part(weights, keyword(batch))
        logits = (scores / start.temperature).masked_fill(_hidden(examples, out, batch), -torch.inf)
        attention = (start.mixture[:, None] * logits.softmax(-1)).sum(1)
        at = torch.as_tensor(np.maximum(positions[batch.numpy()], 0))
        moved = torch.zeros_like(attention).scatter_add_(1, at, target[batch]).sub_(attention)
        pulls[batch] = product(moved, corpus.T)
    if examples.weights is not None:
        pulls *= torch.as_tensor(examples.weights)[:, None]
    owners, places = np.nonzero(grades > 0)
    return Lessons(
        examples.states,
        pulls.numpy(),
        owners.astype(np.int64),
        examples.snapshot.rows(positions[owners, places]),
        grades[owners, places],
        examples.texts if examples.source == "judgements" else None,
    )


def _outside(
    examples: Examples, positions: Int64[np.ndarray, "queries longest"], options: TrainingOptions
) -> Bool[Tensor, " documents"]:
    """Documents that no softmax of the objective is over."""
    out = np.zeros(examples.snapshot.positions, bool)
    if options.objective == "judged":
        out[:] = True
        out[positions[positions >= 0]] = False
    if examples.snapshot.excluded is not None:
        out |= examples.snapshot.excluded
    return torch.as_tensor(out)


def _hidden(
    examples: Examples, out: Bool[Tensor, " documents"], batch: Int64[Tensor, " batch"]
) -> Bool[Tensor, "batch one documents"]:
    hidden = out.expand(len(batch), -1)
    if examples.hidden is not None:
        hidden = hidden.clone()
        for line, number in enumerate(batch.tolist()):
            hidden[line, torch.as_tensor(examples.hidden[number])] = True
    return hidden[:, None]
