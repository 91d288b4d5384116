"""Learning an overlay: bounded changes to the keys of judged documents, beside a head that stays as it is.

What is minimised is the graded cross-entropy over the whole corpus (objectives.py), over δ alone:

    −Σ_d p_d log softmax(l)_d + decay · Σ_d |δ_d|²     l(q, d) = (q · W_K (e_d + δ_d) + w b(q, d)) / t

with no |δ_d| above the bound.

A change serves the document that it is of, whoever asks for it, and says nothing of others, in whose way it
may stand. So it helps *seen* documents, at best, and what it does is reported apart: held-out queries are
answered by the head alone and by the head with an overlay, both learned without them, and the overlay is kept
when the second is significantly better and no slice falls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.attention.fusion_gate import keyword_part
from dsearch.attention.head import Head
from dsearch.attention.overlay import KeyOverlay, bounded
from dsearch.errors import InvalidRequest
from dsearch.products import product
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.head import Trained
from dsearch.training.finetune.null_slot import trained_without
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import HeldOut, joined, split_folds
from dsearch.training.loop.loop import Course, NothingFurther, Watch, run_course
from dsearch.training.losses import losses
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.options import TrainingOptions, require_at_least_one, require_rates, require_weights
from dsearch.training.ranking import KeywordScores, corpus_embeddings, padded

FOLDS = 3


@dataclass(frozen=True, slots=True)
class OverlayOptions:
    """How an overlay is learned.

    Attributes:
        bound: no change is longer, beside embeddings of length 1.
        epochs: passes over the queries.
        batch_size: queries a step.
        learning_rate: Adam.
        decay: weight of Σ |δ|².
        seed: of every random choice.
    """

    bound: float = 0.2
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 3e-3
    decay: float = 1e-2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.bound <= 1:
            raise InvalidRequest(f"bound={self.bound}; use a number above 0, at most 1")
        require_at_least_one(self, "epochs", "batch_size")
        require_rates(self, "learning_rate")
        require_weights(self, "decay")


def learn_overlay(
    head: Head,
    examples: Examples,
    options: OverlayOptions | None = None,
    *,
    keywords: bool = True,
    device: str = "cpu",
    cancelled: Callable[[], bool] | None = None,
) -> KeyOverlay:
    """Changes to the keys of the documents that answer the examples; the head is not touched.

    Args:
        head: of the model.
        examples: judged queries.
        options: how.
        keywords: whether shared words have a part.
        device: where the arithmetic runs.
        cancelled: asked before each step.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        Cancelled: `cancelled` said so.
    """
    options = options or OverlayOptions()
    learned = _Changes(head, examples, options, keywords, device)
    course = Course(len(examples), options.batch_size, options.epochs, options.seed)
    run_course(learned, course, watch=Watch("overlay", cancelled=cancelled))
    rows = examples.snapshot.rows(learned.positions)
    order = np.argsort(rows)
    changes = bounded(learned.trained.changes.detach().cpu(), options.bound)
    return KeyOverlay(torch.as_tensor(rows[order]), changes[torch.as_tensor(order)], options.bound)


def with_overlay(
    trained: Trained,
    examples: Examples,
    training: TrainingOptions,
    options: OverlayOptions | None = None,
    *,
    gate: Gate | None = None,
    device: str = "cpu",
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Trained, GateReport]:
    """What was trained, with an overlay if held-out queries are answered better with than without.

    Args:
        trained: by scope head.
        examples: what it was trained on.
        training: how.
        options: of the overlay.
        gate: what is asked of it, beside the head alone.
        device: where the arithmetic runs.
        cancelled: asked before each step.

    Raises:
        InvalidRequest: another scope than head.
    """
    if training.scope != "head":
        raise InvalidRequest(f"an overlay with scope={training.scope!r}; use scope head")
    options = options or OverlayOptions(seed=training.seed)
    alone, beside = [], []
    for part in split_folds(examples, FOLDS, training.seed):
        if not part or len(part) == len(examples):
            continue
        watch = Watch("overlay", cancelled=cancelled)
        head, rest = trained_without(trained, examples, part, training, device=device, watch=watch)
        overlay = learn_overlay(
            head, rest, options, keywords=training.keywords, device=device, cancelled=cancelled
        )
        held_out = HeldOut(examples.subset(part), rest, keywords=training.keywords)
        alone.append(held_out.answers(head))
        corpus, further = changed_corpus(examples, overlay)
        beside.append(held_out.answers(head, corpus=corpus, further=further))
    before, after = (joined(alone), joined(beside)) if alone else (None, None)
    report = judge(before, after, gate, need_slices=False, seed=training.seed)
    told: dict[str, Any] = {"kept": report.passed, "bound": options.bound, "gate": report.to_dict()}
    head = copy.deepcopy(trained.head)
    if report.passed:
        head.overlay = learn_overlay(
            head, examples, options, keywords=training.keywords, device=device, cancelled=cancelled
        )
        told["documents"] = len(head.overlay)
    return replace(trained, head=head, record={**trained.record, "overlay": told}), report


def changed_corpus(
    examples: Examples, overlay: KeyOverlay
) -> tuple[Float[Tensor, "documents encoder_dim"], FurtherPassages | None]:
    """The embeddings that keys are computed from, first passages and further ones."""
    corpus = corpus_embeddings(examples.snapshot)
    further = FurtherPassages.of(examples.snapshot, corpus)
    every = torch.zeros_like(corpus)
    at = examples.snapshot.positions_of(overlay.rows.numpy())
    here = torch.as_tensor(at >= 0)
    every[torch.as_tensor(at)[here]] = overlay.changes[here]
    if further is not None:
        further = FurtherPassages(further.embeddings + every[further.owners], further.owners)
    return corpus + every, further


class _Learned(nn.Module):
    def __init__(self, changes: Float[Tensor, "changed encoder_dim"]):
        super().__init__()
        self.changes = nn.Parameter(changes)


class _Changes(NothingFurther):
    """The `Task` of loop.py."""

    def __init__(self, head: Head, examples: Examples, options: OverlayOptions, keywords: bool, device: str):
        self._options, self._head = options, head
        relevant, grades = padded(examples.relevant)
        self.positions: Int64[np.ndarray, " changed"] = np.unique(relevant[relevant >= 0])
        self._corpus = corpus_embeddings(examples.snapshot).to(device)
        self._further = FurtherPassages.of(examples.snapshot, self._corpus)
        self._keyword = KeywordScores(examples.weighed(head), device) if keywords else None
        self._states = torch.as_tensor(examples.states).to(device)
        self._relevant = torch.as_tensor(np.maximum(relevant, 0)).to(device)
        self._target = torch.as_tensor(grades / grades.sum(1, keepdims=True)).to(device)
        self._at = torch.as_tensor(self.positions).to(device)
        self.trained = _Learned(torch.zeros(len(self.positions), self._corpus.shape[1], device=device))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The changes."""
        return [{"params": [self.trained.changes], "lr": self._options.learning_rate}]

    def step(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, " losses"]:
        """Cross-entropy with the changes cut to the bound.

        Cut within the graph, not after each step: Adam takes every number's gradient for of one size, so a
        projected step would end at the signs of the direction that is best.
        """
        del generator
        with torch.no_grad():
            head, at = self._head, batch.to(self._corpus.device)
            folded = head.fold(head.queries(self._states[at]))
            scores = product(folded, self._corpus)
            if self._further is not None:
                scores, _ = self._further.taken(folded, scores)
            if self._keyword is not None:
                weights = head.keyword_weights(len(batch), self._keyword.features(batch, head))
                scores = scores + keyword_part(weights, self._keyword(batch))
        changes = bounded(self.trained.changes, self._options.bound)
        moved = scores.index_add(2, self._at, folded @ changes.T)
        logits = (moved / head.temperature.detach()).log_softmax(-1)
        log_weights = (head.mixture.detach().log()[:, None] + logits).logsumexp(1)
        target = torch.zeros_like(log_weights).scatter_add_(1, self._relevant[at], self._target[at])
        loss = losses.cross_entropy(log_weights, target)
        total = loss + self._options.decay * changes.square().sum()
        total.backward()
        return torch.stack([loss, torch.zeros_like(loss), total]).detach()
