"""Learn the values of a field behind a head's attention: the documents with values, and the steps.

    c(q) = Σ_{d ≠ q} a(q, d) e_d        o(q) = W_O W_V c(q) + b

a is the head's attention and stays as it is, so the contexts c are computed once. W_V, W_O and b learn by

    numbers, vectors    |y_q − o(q)|² / value_dim, of values in units of their standard deviation
    labels              −log p̃(y_q), p̃ = (1 − s) softmax(o(q)) + s / labels

The share s bounds the loss. W_O starts as the ridge regression of the values on the contexts, whose penalty
is chosen by the exact leave-one-out error: row i of Y − Ŷ divided by 1 − H_ii (Allen 1974, PRESS).

**Each document leaves itself out.** Every stored document is its own nearest neighbour: with itself among the
evidence it would be predicted from its own embedding, as no new document can be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from dsearch.attention import mix
from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import Head
from dsearch.attention_options import CANDIDATES
from dsearch.engine import UNTRAINED, Collection, Snapshot
from dsearch.engine.home import is_given
from dsearch.engine.state.caches import fields_of
from dsearch.errors import InvalidRequest, amount
from dsearch.training.loop.loop import Epoch, NothingFurther, Student, TrainingSchedule, Watch, run_course
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.options import ValueOptions
from dsearch.training.ranking import corpus_embeddings

SMOOTHING = 0.01  # s: the share that all labels have alike
NOT_EVIDENCE = -1  # place of a query among the evidence that it is no part of
_PENALTIES = tuple(10.0**power for power in range(-4, 4))
_SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of one-hot values as logits

ValueKind = Literal["number", "vector", "label"]


def attention_weights(
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    corpus: Float[Tensor, "documents encoder_dim"],
    own: Int64[Tensor, " batch"],
    *,
    keyword: Float[Tensor, "batch documents"] | None = None,
    further: FurtherPassages | None = None,
    nearest: int | None = None,
) -> Float[Tensor, "batch documents"]:
    """Σ_h m_h softmax(l_h) over all documents but one's own, or over those that a search would pool.

    Args:
        head: head of the model.
        states: query embeddings.
        corpus: embeddings of the evidence.
        own: place of each query among the evidence, which is left out; −1 for a query that has none.
        keyword: b(q, d), None for dense attention.
        further: further passages of long documents among the evidence.
        nearest: number of candidates of each leg, as in a search; None for all documents.
    """
    folded = head.fold(head.queries(states))
    scores = folded @ corpus.T
    if further is not None:
        scores, _ = further.taken(folded, scores)
    places = torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.masked_fill((places == own[:, None])[:, None], -torch.inf)
    near = None if nearest is None else _candidates(scores, keyword, nearest)
    if keyword is not None:
        scores = scores + keyword_part(head.keyword_weight, keyword)
    if near is not None:
        scores = scores.masked_fill(~near[:, None], -torch.inf)
    # A document without any other has no neighbour: its weights are zero, not NaN.
    alone = (scores == -torch.inf).all(-1, keepdim=True)
    weights = (scores / head.temperature).masked_fill(alone, 0.0).softmax(-1).masked_fill(alone, 0.0)
    return mix(weights, head.mixture_of(folded))


def _candidates(
    scores: Float[Tensor, "batch heads documents"],
    keyword: Float[Tensor, "batch documents"] | None,
    nearest: int,
) -> Tensor:
    """Mask of the documents that a search would pool: the candidates of any head, or of any keyword."""
    count = min(nearest, scores.shape[-1])
    near = torch.zeros_like(scores, dtype=torch.bool)
    near.scatter_(-1, scores.topk(count, -1).indices, True)
    near = near.any(1)
    if keyword is not None:
        best = keyword.topk(count, -1)
        near = near.scatter(-1, best.indices, near.gather(-1, best.indices) | (best.values > 0))
    return near


def squared_error(
    predicted: Float[Tensor, "batch value_dim"], wanted: Float[Tensor, "batch value_dim"]
) -> Float[Tensor, " batch"]:
    """|v − v̂|² / value_dim of each."""
    return (predicted - wanted).square().mean(-1)


def log_loss(
    shares: Float[Tensor, "batch labels"], wanted: Float[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """−log p̃ of each; `wanted` is 1 at the right label."""
    right = (shares * wanted).sum(-1)
    return -((1 - SMOOTHING) * right + SMOOTHING / shares.shape[-1]).log()


def loss_of_values(
    kind: ValueKind, predicted: Float[Tensor, "batch value_dim"], wanted: Float[Tensor, "batch value_dim"]
) -> Float[Tensor, " batch"]:
    """The loss for values of this kind."""
    return log_loss(predicted, wanted) if kind == "label" else squared_error(predicted, wanted)


def start_output(
    output: nn.Linear,
    contexts: Float[Tensor, "examples value_dim"],
    targets: Float[Tensor, "examples output_dim"],
    *,
    labels: bool,
) -> None:
    """Set an output projection to the ridge regression of the targets on the contexts.

    Args:
        output: the projection.
        contexts: pooled embeddings.
        targets: values, one-hot for labels.
        labels: True if the output is logits: their scale is chosen by the log loss of left-out examples.
    """
    x, y = contexts.double(), targets.double()
    centre, middle = x.mean(0), y.mean(0)
    u, s, v = torch.linalg.svd(x - centre, full_matrices=False)
    projected = u.T @ (y - middle)
    best: tuple[float, Tensor, Tensor] | None = None
    for penalty in _PENALTIES:
        shrunk = s.square() / (s.square() + penalty)
        leverage = (u.square() * shrunk).sum(1) + 1 / len(x)
        fitted = middle + u @ (shrunk[:, None] * projected)
        left_out = y - (y - fitted) / (1 - leverage).clamp_min(1e-6)[:, None]
        error = (y - left_out).square().mean().item()
        if best is None or error < best[0]:
            weight = (v.T * (s / (s.square() + penalty))) @ projected
            best = error, weight.T, left_out
    assert best is not None
    _, weight, left_out = best
    scale = 1.0
    if labels:
        target = targets.argmax(1)
        losses = [nn.functional.cross_entropy(left_out * factor, target).item() for factor in _SCALES]
        scale = _SCALES[losses.index(min(losses))]
    with torch.no_grad():
        output.weight.copy_(scale * weight)
        output.bias.copy_(scale * (middle - weight @ centre))


MIN_DOCUMENTS = 10  # with fewer there are no neighbours to speak of
MAX_LABELS = 1000
_READ_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class ValueExamples:
    """Documents with the values that are learned for them.

    Attributes:
        snapshot: the collection's state, with the embeddings of a version.
        field: name of the field.
        kind: number, vector or label.
        positions: documents that have the field, ascending.
        values: their values, in units of their standard deviation around their mean, or one-hot.
        labels: labels of the columns of one-hot values; empty for numbers.
        scale: standard deviation of each number, in the field's own units; empty for labels.
        centre: mean of each number; empty for labels.
        texts: their texts; empty if the collection stores given embeddings without texts.
        left_out: number of unusable documents, by reason.
        digest: SHA-256 of field and values, to identify the training data.
    """

    snapshot: Snapshot
    field: str
    kind: ValueKind
    positions: Int64[np.ndarray, " documents"]
    values: Float32[np.ndarray, "documents value_dim"]
    labels: tuple[str | bool, ...]
    scale: Float32[np.ndarray, " numbers"]
    centre: Float32[np.ndarray, " numbers"]
    texts: list[str]
    left_out: dict[str, int]
    digest: str

    def __len__(self) -> int:
        return len(self.positions)


def value_examples(collection: Collection, field: str, model: str = UNTRAINED) -> ValueExamples:
    """Documents of a collection that have a field, each with its own embedding as query.

    Args:
        collection: collection of the documents.
        field: metadata by a dotted path, or "value" for `Document.value`.
        model: version whose embeddings of the documents are used.

    Raises:
        InvalidRequest: too few documents with the field, values of several kinds, a single label, more
            labels than are sensible.
    """
    snapshot = collection.snapshot_for(model)
    visible = snapshot.visible()
    collected: list[Any] = []
    for start in range(0, len(visible), _READ_AT_A_TIME):
        rows = snapshot.rows(visible[start : start + _READ_AT_A_TIME])
        collected += list(fields_of(collection.store, rows, field))
    has = np.array([value is not None for value in collected], bool)
    present = [value for value in collected if value is not None]
    if len(present) < MIN_DOCUMENTS:
        raise InvalidRequest(
            f"the field {field!r} is in {amount(len(present), 'document')} of collection "
            f"{collection.name!r}; "
            f"at least {MIN_DOCUMENTS} are needed to learn from"
        )
    kind = _kind(present, field)
    positions = visible[has].astype(np.int64)
    labels: tuple[str | bool, ...] = ()
    scale = centre = np.zeros(0, np.float32)
    if kind == "label":
        labels = _labels(present, field)
        values = _one_hot(present, labels)
    else:
        numbers = np.array(present, np.float64).reshape(len(present), -1)
        # Of equal numbers the mean may be off by its rounding, and the deviation from it is then not 0.
        spread = np.where(numbers.min(0) == numbers.max(0), 0.0, numbers.std(0))
        if not spread.any():
            raise InvalidRequest(f"every document has the same {field!r}; there is nothing to tell apart")
        spread[spread == 0] = 1.0
        centre = numbers.mean(0).astype(np.float32)
        values, scale = ((numbers - numbers.mean(0)) / spread).astype(np.float32), spread.astype(np.float32)
    texts = [] if is_given(collection.store) else _texts(collection, snapshot.rows(positions))
    content = json.dumps([field, collection.store.ids(snapshot.rows(positions)), present])
    left_out = {"documents without the field": int((~has).sum())} if not has.all() else {}
    return ValueExamples(
        snapshot=snapshot,
        field=field,
        kind=kind,
        positions=positions,
        values=values,
        labels=labels,
        scale=scale,
        centre=centre,
        texts=texts,
        left_out=left_out,
        digest=hashlib.sha256(content.encode()).hexdigest(),
    )


def _texts(collection: Collection, rows: Int64[np.ndarray, " documents"]) -> list[str]:
    texts: list[str] = []
    for start in range(0, len(rows), _READ_AT_A_TIME):
        texts += collection.store.contents(rows[start : start + _READ_AT_A_TIME])
    return texts


def _kind(values: Sequence[Any], field: str) -> ValueKind:
    """The one kind of all values."""
    kinds: dict[tuple[ValueKind, int], Any] = {}
    for value in values:
        if isinstance(value, str | bool):
            kinds.setdefault(("label", 0), value)
        elif isinstance(value, int | float):
            kinds.setdefault(("number", 0), value)
        else:
            kinds.setdefault(("vector", len(value)), value)
    if len(kinds) > 1:
        first, other, *_ = (repr(value)[:60] for value in kinds.values())
        raise InvalidRequest(f"field {field!r} is {first} here and {other} there; make it of one kind")
    return next(iter(kinds))[0]


def _labels(values: Sequence[str | bool], field: str) -> tuple[str | bool, ...]:
    labels = tuple(sorted(set(values), key=str))
    if len(labels) < 2:
        raise InvalidRequest(f"every document has the same {field!r}; there is nothing to tell apart")
    if len(labels) > min(MAX_LABELS, len(values) // 2):
        raise InvalidRequest(
            f"{len(labels)} different {field!r} in {amount(len(values), 'document')}; a label that is to "
            "be learned "
            f"stands for several documents, and there are at most {MAX_LABELS}"
        )
    return labels


def _one_hot(
    values: Sequence[str | bool], labels: Sequence[str | bool]
) -> Float32[np.ndarray, "documents labels"]:
    column = {label: number for number, label in enumerate(labels)}
    matrix = np.zeros((len(values), len(labels)), np.float32)
    matrix[np.arange(len(values)), [column[value] for value in values]] = 1
    return matrix


def described(examples: ValueExamples) -> Mapping[str, Any]:
    """Description of the training data, for the record."""
    return {
        "field": examples.field,
        "kind": examples.kind,
        "examples": len(examples),
        "labels": len(examples.labels) or None,
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
    }


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
