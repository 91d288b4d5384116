"""Learn the null slot ("no document fits") from judged queries that no document answers.

The slot's two numbers are fitted to an already trained head, by the evidence Z of the served search itself:
the ranking does not change, and the fit has one optimum. A head has learned the answers to its training
queries, so their evidence is higher than that of other queries. So Z of those is taken from heads that were
trained without them, fold by fold; unanswerable queries were in no training.

The report on the slot is cross-fitted once more: each fold by the slot fitted to the others. A slot that
predicts no better than the share of unanswerable queries is not used.

`trained_without` trains a head again, like another one but without some of its examples: a null slot is
fitted and evaluated on queries that the head did not learn from, while the served head learned from all of
them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32

from dsearch.attention import fit_null_slot, slot_evidence
from dsearch.attention.retrieval.head import Head
from dsearch.engine import Snapshot
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation.calibration import Answerability, answerability
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.head import TrainingResult
from dsearch.training.gate.selection import part_of_the_way, reweighed
from dsearch.training.loop.loop import Watch
from dsearch.training.loop.observer import Observer
from dsearch.training.options import TrainingOptions
from dsearch.training.scopes.head import new_head, train_student

if TYPE_CHECKING:
    from dsearch.encoder import TextEncoder


FOLDS = 3
MIN_UNANSWERABLE = 10
_AT_A_TIME = 64

TrainWithout = Callable[[list[int]], Head]
"""Indices of examples → a head that was trained without them."""


@dataclass(frozen=True, slots=True)
class NullSlot:
    """Null slot with its cross-fitted evaluation.

    Attributes:
        level: n; the slot's logit against a Z of 0.
        slope: s.
        measures: calibration and ranking of unanswerable queries, each fold by the slot of the others.
        gain: gain in mean log likelihood, in nats per query, over predicting the share of unanswerable ones.
        opened: True if it predicts better than that share.
    """

    level: float
    slope: float
    measures: Answerability
    gain: float
    opened: bool

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the model's record."""
        numbers = {"level": self.level, "slope": self.slope, "gain_nats": self.gain, "opened": self.opened}
        return {**numbers, **self.measures.to_dict()}

    def to_text(self) -> str:
        """A line for a terminal."""
        slot = "null slot" if self.opened else "null slot left out: it says no more than the share of queries"
        return f"{slot}: {self.measures.to_text()}"


def unanswerable_queries(
    queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, float]]
) -> dict[str, str]:
    """Queries that were judged, and nothing answers: every grade of theirs is 0 or less."""
    unanswerable = {
        query: queries.get(query, "").strip()
        for query, grades in qrels.items()
        if grades and max(grades.values()) <= 0
    }
    return {query: text for query, text in unanswerable.items() if text}


def enough_unanswerable(
    queries: Mapping[str, str] | None, qrels: Mapping[str, Mapping[str, float]] | None, answerable: int
) -> list[str]:
    """Texts of `unanswerable_queries`.

    Raises:
        InvalidRequest: as `require_both`.
    """
    unanswerable = [*unanswerable_queries(queries or {}, qrels or {}).values()]
    require_both(len(unanswerable), answerable)
    return unanswerable


def require_both(unanswerable: int, answerable: int) -> None:
    """Refuse too few queries of one of the two kinds, before anything is trained.

    Raises:
        InvalidRequest: fewer than `MIN_UNANSWERABLE`.
    """
    if min(unanswerable, answerable) < MIN_UNANSWERABLE:
        raise InvalidRequest(
            f"{amount(unanswerable, 'judged query', 'judged queries')} that nothing answers and {answerable} "
            f"that something does; a null slot needs at least {MIN_UNANSWERABLE} of both (grade 0 says that "
            "a document does not answer)"
        )


def learn_null_slot(
    head: Head,
    examples: Examples,
    unanswerable: Sequence[str],
    states: Float32[np.ndarray, "unanswerable encoder_dim"],
    *,
    train_without: TrainWithout | None = None,
    seed: int = 0,
) -> tuple[Head, NullSlot]:
    """Fit a slot; return a copy of the head, with the slot if it is informative, and the evaluation.

    Args:
        head: as it will answer.
        examples: answerable queries.
        unanswerable: texts of queries that nothing answers.
        states: embeddings of the unanswerable queries.
        train_without: trains a head like this one without some of the examples; None where it was not
            trained on them.
        seed: random seed of the folds.

    Raises:
        InvalidRequest: fewer than `MIN_UNANSWERABLE` queries of one of the two kinds.
    """
    require_both(len(unanswerable), len(examples))
    count = len(examples) + len(unanswerable)
    fold = np.random.default_rng(seed).permutation(count) % FOLDS
    wrong = np.arange(count) >= len(examples)
    texts = [*examples.texts, *unanswerable]
    every = np.concatenate([examples.states, states])
    evidence = np.zeros(count)
    for number in range(FOLDS):
        part = np.flatnonzero(fold == number)
        opened = head
        if train_without is not None:
            opened = train_without(part[part < len(examples)].tolist())
        evidence[part] = evidence_of(opened, examples.snapshot, [texts[i] for i in part], every[part])
    crossed = np.zeros(count)
    for number in range(FOLDS):
        part = fold == number
        crossed[part] = _weights(_fit(evidence[~part], wrong[~part]), evidence[part])
    level, slope = _fit(evidence, wrong)
    gain = _likelihood(crossed, wrong) - _likelihood(np.full(count, wrong.mean()), wrong)
    measured = answerability(crossed, wrong)
    slot = NullSlot(level, slope, measured, gain, opened=gain > 0 and slope > 0)
    slotted = copy.deepcopy(head)
    if slot.opened:
        slotted.open_null_slot(level, slope)
    return slotted, slot


@torch.inference_mode()
def evidence_of(
    head: Head,
    snapshot: Snapshot,
    texts: Sequence[str],
    states: Float32[np.ndarray, "queries encoder_dim"],
) -> Float[np.ndarray, " queries"]:
    """Z of each query as a hybrid search finds it."""
    layer = SearchLayer(snapshot, head)
    parts: list[Float[np.ndarray, " some"]] = []
    for start in range(0, len(texts), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        output = layer(torch.as_tensor(states[part]), list(texts[part]))
        mask = torch.as_tensor(output.positions != NONE)
        raw = output.raw
        mixture = head.mixture_of(output.folded)
        parts.append(slot_evidence(raw, mask, head.temperature, mixture).double().numpy())
    return np.concatenate([*parts, np.zeros(0)])


def with_null_slot(
    trained: TrainingResult,
    examples: Examples,
    options: TrainingOptions,
    unanswerable: Sequence[str],
    encoder: TextEncoder,
    *,
    device: str = "cpu",
    observer: Observer | None = None,
) -> tuple[TrainingResult, NullSlot]:
    """Fit a null slot and add it to the trained head if it is informative; the record has its evaluation.

    Args:
        trained: result of scope head.
        examples: its training examples.
        options: its options.
        unanswerable: texts of queries that no document answers.
        encoder: the collection's encoder.
        device: device of the training.
        observer: receives progress; may stop it before a step of the trainings without a fold.

    Raises:
        InvalidRequest: another scope; too few queries of one of the two kinds.
    """
    if options.scope != "head":
        raise InvalidRequest(f"a null slot with scope={options.scope!r}; use scope head")

    def without(held_out: list[int]) -> Head:
        watch = Watch("null slot", observer or Observer())
        return trained_without(trained, examples, held_out, options, device=device, watch=watch)

    states = encoder.encode_queries(list(unanswerable))
    head, slot = learn_null_slot(
        trained.head, examples, unanswerable, states, train_without=without, seed=options.seed
    )
    record = {**trained.record, "null_slot": slot.to_dict()}
    return replace(trained, head=head, record=record), slot


def _fit(evidence: Float[np.ndarray, " queries"], wrong: Bool[np.ndarray, " queries"]) -> tuple[float, float]:
    return fit_null_slot(torch.as_tensor(evidence), torch.as_tensor(wrong))


def _weights(
    slot: tuple[float, float], evidence: Float[np.ndarray, " queries"]
) -> Float[np.ndarray, " queries"]:
    logits = torch.as_tensor(slot[0] - slot[1] * evidence)
    return torch.sigmoid(logits).numpy()


def _likelihood(weights: Float[np.ndarray, " queries"], wrong: Bool[np.ndarray, " queries"]) -> float:
    right = np.where(wrong, weights, 1 - weights)
    return float(np.log(np.clip(right, 1e-12, 1)).mean())


def trained_without(
    trained: TrainingResult,
    examples: Examples,
    held_out: Sequence[int],
    options: TrainingOptions,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
) -> Head:
    """Train a head of the same keyword start, hop, epochs, share and keyword factor.

    Args:
        trained: result of scope head.
        examples: its training examples.
        held_out: indices of those to leave out.
        options: options of its training.
        device: device of the training.
        watch: observer and checkpoints of the run.
    """
    rest = examples.subset(sorted(set(range(len(examples))) - set(held_out)))
    start = reweighed(trained.head, 1 / trained.keyword_factor)
    student = train_student(rest, options, start=start, epochs=trained.epochs, device=device, watch=watch)
    beginning = new_head(examples.states.shape[1], options, start)
    head = part_of_the_way(beginning, student.head, trained.share)
    return reweighed(head, trained.keyword_factor)
