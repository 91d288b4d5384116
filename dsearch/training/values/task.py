"""Pool embeddings and values of documents, train W_V, W_O and b on what was pooled, measure predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.attention_options import CANDIDATES
from dsearch.training.loop.loop import NothingFurther, TrainingSchedule, Watch, run_course
from dsearch.training.loop.observer import Epoch, Student
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.options import ValueOptions
from dsearch.training.ranking import corpus_embeddings
from dsearch.training.values.context import (
    NOT_EVIDENCE,
    ValueKind,
    attention_weights,
    log_loss,
    loss_of_values,
    start_output,
)
from dsearch.training.values.examples import ValueExamples

_LOGITS_AT_A_TIME = 1 << 25

OnHead = Callable[[Epoch, Head], None]


class PooledDocuments(NamedTuple):
    """What the attention of some documents pools from others: embeddings, and stored values."""

    contexts: Float[Tensor, "asked encoder_dim"]
    stored: Float[Tensor, "asked value_dim"]


class ValueData:
    """Documents and their values as tensors, once, for all folds.

    Args:
        examples: documents with their values.
        keywords: True to include the keyword score.
        device: device of the training.
    """

    def __init__(self, examples: ValueExamples, *, keywords: bool, device: str = "cpu"):
        self.examples, self.device = examples, torch.device(device)
        every = corpus_embeddings(examples.snapshot)
        at = torch.as_tensor(examples.positions)
        further = FurtherPassages.of(examples.snapshot, every)
        self.corpus = every[at].to(self.device)
        self.further = None if further is None else further.among(at).to(self.device)
        self.values = torch.as_tensor(examples.values).to(self.device)
        self.keywords = keywords and bool(examples.texts)

    @torch.no_grad()
    def pooled(
        self,
        head: Head,
        asked: Int64[np.ndarray, " asked"],
        evidence: Int64[np.ndarray, " evidence"] | None = None,
        *,
        nearest: int | None = None,
    ) -> PooledDocuments:
        """Pool the evidence for some documents, each without itself.

        Args:
            head: head whose attention pools, on the same device.
            asked: documents that ask, by their place in the examples.
            evidence: documents that are pooled, ascending; all when None.
            nearest: number of candidates of each leg, as in a search; None for all of the evidence.
        """
        evidence = np.arange(len(self.examples)) if evidence is None else evidence
        which = torch.as_tensor(evidence).to(self.device)
        corpus, values = self.corpus[which], self.values[which]
        further = None if self.further is None else self.further.among(which)
        place = np.full(len(self.examples), NOT_EVIDENCE)
        place[evidence] = np.arange(len(evidence))
        own = torch.as_tensor(place).to(self.device)
        parts = list[PooledDocuments]()
        at_a_time = max(1, _LOGITS_AT_A_TIME // (head.heads * len(corpus)))
        for at in torch.as_tensor(asked).split(at_a_time):
            weights = attention_weights(
                head,
                self.corpus[at],
                corpus,
                own[at],
                keyword=self._keyword(at.numpy(), evidence),
                further=further,
                nearest=nearest,
            )
            parts.append(PooledDocuments(weights @ corpus, weights @ values))
        return PooledDocuments(*map(torch.cat, zip(*parts, strict=True)))

    def _keyword(
        self, asked: Int64[np.ndarray, " asked"], evidence: Int64[np.ndarray, " evidence"]
    ) -> Float[Tensor, "asked evidence"] | None:
        if not self.keywords:
            return None
        texts = [self.examples.texts[i] for i in asked.tolist()]
        scores = self.examples.snapshot.all_keyword_scores(texts)[:, self.examples.positions[evidence]]
        return torch.as_tensor(scores).to(self.device)


def served_by(
    data: ValueData,
    head: Head,
    asked: Int64[np.ndarray, " asked"],
    evidence: Int64[np.ndarray, " evidence"] | None = None,
) -> PooledDocuments:
    """Pool as `predict` of a collection does: from the same number of candidates."""
    return data.pooled(head, asked, evidence, nearest=CANDIDATES)


@torch.no_grad()
def predicted_by(
    head: Head, contexts: Float[Tensor, "asked encoder_dim"], kind: ValueKind
) -> Float32[np.ndarray, "asked value_dim"]:
    """Predict learned values from pooled embeddings: shares of labels, or numbers in standard units."""
    return _outputs(head, contexts, kind).cpu().numpy()


def _outputs(
    head: Head, contexts: Float[Tensor, "asked encoder_dim"], kind: ValueKind
) -> Float[Tensor, "asked value_dim"]:
    outputs = head.outputs(head.values(contexts))  # W_V is linear: of the pooled embeddings
    return outputs.softmax(-1) if kind == "label" else outputs


def scores_of_values(
    examples: ValueExamples,
    asked: Int64[np.ndarray, " asked"],
    predicted: Float32[np.ndarray, "asked value_dim"],
) -> Float[np.ndarray, " asked"]:
    """More is better: 1 − squared error / variance of numbers (its mean is R²), log p̃ of the right label."""
    wanted = torch.as_tensor(examples.values[asked])
    loss = loss_of_values(examples.kind, torch.as_tensor(predicted), wanted)
    scores = -loss if examples.kind == "label" else 1 - loss
    return scores.double().numpy()


def measures_of_values(
    examples: ValueExamples,
    asked: Int64[np.ndarray, " asked"],
    predicted: Float32[np.ndarray, "asked value_dim"],
) -> dict[str, float]:
    """Reported measures: R² and root mean squared error in the field's units; accuracy and log loss."""
    wanted = examples.values[asked]
    if examples.kind == "label":
        loss = log_loss(torch.as_tensor(predicted), torch.as_tensor(wanted))
        right = predicted.argmax(1) == wanted.argmax(1)
        return {"accuracy": float(right.mean()), "log_loss": float(loss.mean())}
    errors = (predicted - wanted) ** 2
    own_units = (errors * examples.scale**2).mean()
    return {"r2": float(1 - errors.mean()), "rmse": float(np.sqrt(own_units))}


class ValuesTask(NothingFurther):
    """The `TrainingTask`: W_V, W_O and b of a new head, on embeddings that another head's attention pools.

    The loss is the error of the outputs and the decay of W_V towards the identity.

    Args:
        data: documents and values.
        options: options of the training.
        start: head whose attention pools, on the device of the data.
        asked: documents to learn from, which are the evidence of each other; all when None.
    """

    def __init__(
        self,
        data: ValueData,
        options: ValueOptions,
        start: Head,
        asked: Int64[np.ndarray, " asked"] | None = None,
    ):
        evidence = asked = np.arange(len(data.examples)) if asked is None else asked
        if len(asked) > options.most_examples:
            drawn = np.random.default_rng(options.seed).choice(asked, options.most_examples, replace=False)
            asked = np.sort(drawn)
        self._contexts = data.pooled(start, asked, evidence).contexts
        self._wanted = data.values[torch.as_tensor(asked).to(data.device)]
        self._kind: ValueKind = data.examples.kind
        self.head, labels = Head(data.corpus.shape[1]), self._kind == "label"
        output = self.head.open_output(self._wanted.shape[1])
        start_output(output, self._contexts.cpu(), self._wanted.cpu(), labels=labels)
        self.trained = Student(self.head.to(data.device))
        self._options, self._learning = options, [self.head.value_delta, *output.parameters()]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """W_V, W_O and b."""
        return [{"params": self._learning, "lr": self._options.learning_rate}]

    def step(
        self,
        batch: Int64[Tensor, " batch"],
        generator: torch.Generator,  # noqa: ARG002  of the protocol: nothing is drawn
    ) -> Float[Tensor, " losses"]:
        """Leave the gradients of error and decay; (error, 0, both)."""
        at = batch.to(self._contexts.device)
        outputs = _outputs(self.head, self._contexts[at], self._kind)
        loss = loss_of_values(self._kind, outputs, self._wanted[at]).mean()
        total = loss + self._options.decay * self.head.value_delta.square().sum()
        total.backward()
        return torch.stack([loss, torch.zeros_like(loss), total]).detach()

    def train(
        self, epochs: int | None = None, *, watch: Watch | None = None, on_epoch: OnHead | None = None
    ) -> Head:
        """Train; equal arguments give an equal head.

        Args:
            epochs: stop after so many, on the schedule of the options; all when None.
            watch: receives progress, and keeps checkpoints.
            on_epoch: called after each epoch.

        Raises:
            TrainingDiverged: NaN or infinity in the loss.
            Cancelled: the watch stopped it.
        """
        options = self._options
        course = TrainingSchedule(
            len(self._contexts), options.batch_size, options.epochs, options.seed, epochs
        )

        def report(epoch: Epoch) -> bool:
            if on_epoch is not None:
                on_epoch(epoch, self.head)
            return True

        run_course(self, course, watch=watch, on_epoch=report)
        return self.head.cpu().eval()
