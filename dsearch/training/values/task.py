"""Train a head on values: the `Task` of loop.py, and measures of its predictions on held-out documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.attention_options import CANDIDATES
from dsearch.training.loop.loop import NothingFurther, TrainingSchedule, Watch, run_course
from dsearch.training.loop.observer import Epoch, Student
from dsearch.training.losses.objectives import FrozenAttention, retention
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.options import ValueOptions
from dsearch.training.ranking import corpus_embeddings
from dsearch.training.scopes.head import descend, head_groups, new_head
from dsearch.training.values.context import contrastive_loss, start_output
from dsearch.training.values.examples import ValueExamples
from dsearch.training.values.losses import NOT_EVIDENCE, log_loss, loss_of_values, pooled_values

_KEPT_KEYWORD_BYTES = 1 << 30  # keyword scores of all examples, kept up to this size
_AT_A_TIME = 128

OnHead = Callable[[Epoch, Head], None]


class ValueData:
    """Examples as tensors, once, for all folds.

    Args:
        examples: queries and evidence.
        keywords: True to include the keyword score.
        device: device of the training.
    """

    def __init__(self, examples: ValueExamples, *, keywords: bool, device: str = "cpu"):
        self.examples, self.device = examples, device
        every = corpus_embeddings(examples.snapshot)
        at = torch.as_tensor(examples.positions)
        further = FurtherPassages.of(examples.snapshot, every)
        self.corpus = every[at].to(device)
        self.further = None if further is None else further.among(at).to(torch.device(device))
        self.values, self.states, self.wanted = (
            torch.as_tensor(array).to(device) for array in (examples.values, examples.states, examples.wanted)
        )
        self.keywords = keywords and bool(examples.texts)
        size = 4 * len(examples) * examples.snapshot.positions
        self._keyword: Float32[np.ndarray, "examples documents"] | None = None
        if self.keywords and size <= _KEPT_KEYWORD_BYTES:
            self._keyword = self._keyword_scores(np.arange(len(examples)))

    def keyword(self, queries: Int64[np.ndarray, " batch"]) -> Float32[np.ndarray, "batch documents"]:
        """b(q, d) of these examples for all of the evidence."""
        return self._keyword_scores(queries) if self._keyword is None else self._keyword[queries]

    def _keyword_scores(self, queries: Int64[np.ndarray, " batch"]) -> Float32[np.ndarray, "batch documents"]:
        texts = [self.examples.texts[i] for i in queries.tolist()]
        return self.examples.snapshot.all_keyword_scores(texts)[:, self.examples.positions]


class HeldEvidence:
    """Some of the documents, from which values are pooled.

    Args:
        data: all documents.
        which: places among the evidence, ascending; None for all.
    """

    def __init__(self, data: ValueData, which: Int64[np.ndarray, " documents"] | None = None):
        self._data, self._which = data, which
        at = None if which is None else torch.as_tensor(which).to(data.device)
        self.corpus = data.corpus if at is None else data.corpus[at]
        self.values = data.values if at is None else data.values[at]
        self.further = data.further if at is None or data.further is None else data.further.among(at)
        own = data.examples.own
        if which is not None:
            place = np.full(len(data.corpus) + 1, NOT_EVIDENCE)  # the last is that of −1
            place[which] = np.arange(len(which))
            own = place[own]
        self._own = torch.as_tensor(own)

    def predict(
        self,
        head: Head,
        queries: Int64[Tensor, " batch"],
        *,
        nearest: int | None = None,
        contexts: bool = False,
    ) -> Float[Tensor, "batch value_dim"]:
        """The values that are pooled for the examples at these indices, each without itself.

        A head with an output projection has learned values; `contexts` returns pooled embeddings in their
        place.
        """
        data, keyword = self._data, None
        if data.keywords:
            scores = data.keyword(queries.numpy())
            scores = scores if self._which is None else scores[:, self._which]
            keyword = torch.as_tensor(scores).to(data.device)
        at, learned = queries.to(data.device), head.output is not None
        pooled = pooled_values(
            head,
            data.states[at],
            self.corpus,
            self.corpus if learned or contexts else self.values,
            self._own[queries].to(data.device),
            keyword=keyword,
            further=self.further,
            nearest=nearest,
        )
        if not learned or contexts:
            return pooled
        outputs = head.outputs(head.values(pooled))  # W_V is linear: of the pooled embeddings
        return outputs.softmax(-1) if data.examples.kind == "label" else outputs

    @torch.inference_mode()
    def served(
        self, head: Head, queries: Int64[np.ndarray, " asked"]
    ) -> Float32[np.ndarray, "asked value_dim"]:
        """Predictions as `predict` of a collection would return them, from the same number of candidates."""
        parts = torch.as_tensor(queries).split(_AT_A_TIME)
        predictions = [self.predict(head, part, nearest=CANDIDATES).cpu() for part in parts]
        return torch.cat([*predictions, torch.zeros(0, self.values.shape[1])]).numpy()


def scores_of_values(
    examples: ValueExamples,
    queries: Int64[np.ndarray, " asked"],
    predicted: Float32[np.ndarray, "asked value_dim"],
    *,
    contrastive: bool = False,
) -> Float[np.ndarray, " asked"]:
    """More is better: 1 − squared error / variance of numbers (its mean is R²), log p̃ of the right label.

    Of a contrastive objective the log share of the right vector among those of all that are asked.
    """
    wanted = torch.as_tensor(examples.wanted[queries])
    if contrastive:
        return -contrastive_loss(torch.as_tensor(predicted), wanted).double().numpy()
    loss = loss_of_values(examples.kind, torch.as_tensor(predicted), wanted)
    scores = -loss if examples.kind == "label" else 1 - loss
    return scores.double().numpy()


def measures_of_values(
    examples: ValueExamples,
    queries: Int64[np.ndarray, " asked"],
    predicted: Float32[np.ndarray, "asked value_dim"],
) -> dict[str, float]:
    """Reported measures: R² and root mean squared error in the field's units; accuracy and log loss."""
    wanted = examples.wanted[queries]
    if examples.kind == "label":
        loss = log_loss(torch.as_tensor(predicted), torch.as_tensor(wanted))
        right = predicted.argmax(1) == wanted.argmax(1)
        return {"accuracy": float(right.mean()), "log_loss": float(loss.mean())}
    errors = (predicted - wanted) ** 2
    own_units = (errors * examples.scale**2).mean()
    return {"r2": float(1 - errors.mean()), "rmse": float(np.sqrt(own_units))}


def train_on_values(
    data: ValueData,
    options: ValueOptions,
    *,
    queries: Int64[np.ndarray, " asked"] | None = None,
    evidence: Int64[np.ndarray, " documents"] | None = None,
    start: Head | None = None,
    epochs: int | None = None,
    watch: Watch | None = None,
    on_epoch: OnHead | None = None,
) -> Head:
    """Train a head from the identity to predict values; equal arguments give an equal head.

    Args:
        data: documents and values.
        options: options of the training.
        asked: the examples to learn from; all, or as many as `most_examples`, when None.
        evidence: places of the documents that have a part at all; all when None.
        start: its keyword weight is taken.
        epochs: stop after so many, on the schedule of `options.epochs`.
        watch: who follows, and where checkpoints are kept.
        on_epoch: told after each epoch.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        Cancelled: the watch said so.
    """
    queries = np.arange(len(data.examples)) if queries is None else queries
    if len(queries) > options.most_examples:
        drawn = np.random.default_rng(options.seed).choice(queries, options.most_examples, replace=False)
        queries = np.sort(drawn)
    head = new_head(data.states.shape[1], options, start).to(data.device)
    with torch.no_grad():
        head.hop_strength.zero_()  # documents are asked once
    of_evidence = HeldEvidence(data, evidence)
    if options.values == "learned":
        open_learned_values(head, of_evidence, data, torch.as_tensor(queries))
    task = _ValuesOfDocuments(data, of_evidence, queries, options, Student(head))
    course = TrainingSchedule(len(queries), options.batch_size, options.epochs, options.seed, epochs)

    def report(epoch: Epoch) -> bool:
        if on_epoch is not None:
            on_epoch(epoch, head)
        return True

    run_course(task, course, watch=watch, on_epoch=report)
    return head.cpu().eval()


def open_learned_values(
    head: Head, evidence: HeldEvidence, data: ValueData, examples: Int64[Tensor, " examples"]
) -> None:
    """Open the head's output projection at its start; see context.py."""
    with torch.no_grad():
        parts = [evidence.predict(head, part, contexts=True) for part in examples.split(_AT_A_TIME)]
    output = head.open_output(data.wanted.shape[1])
    wanted = data.wanted[examples.to(data.device)]
    start_output(output, torch.cat(parts), wanted, labels=data.examples.kind == "label")


class _ValuesOfDocuments(NothingFurther):
    """The `Task`."""

    def __init__(
        self,
        data: ValueData,
        evidence: HeldEvidence,
        queries: Int64[np.ndarray, " asked"],
        options: ValueOptions,
        student: Student,
    ):
        self.trained = student
        self._data, self._evidence, self._options = data, evidence, options
        self._queries = torch.as_tensor(queries)
        steps = -(-len(queries) // options.batch_size) * options.epochs
        draws = steps * options.retention_batch if options.retention else 0
        self._frozen = FrozenAttention(evidence.corpus, draws)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The head's."""
        return head_groups(self.trained.head, self._options)

    def step(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, " losses"]:
        """Error of the pooled values, retention and decay; see values.py."""
        options, head, data = self._options, self.trained.head, self._data
        queries = self._queries[batch]
        predicted, wanted = self._evidence.predict(head, queries), data.wanted[queries.to(data.device)]
        if options.contrastive:
            loss = contrastive_loss(predicted, wanted).mean()
        else:
            loss = loss_of_values(data.examples.kind, predicted, wanted).mean()
        corpus = self._evidence.corpus
        drawn = torch.randint(len(corpus), (options.retention_batch,), generator=generator)
        retained = torch.zeros((), device=corpus.device)
        if options.retention:
            retained = retention(head, corpus[drawn], corpus, self._frozen(drawn))
        return descend(loss, retained, head, options)
