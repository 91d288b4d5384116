"""Scope `full`: train the encoder of queries and documents; documents are encoded again within each step.

    pool      the batch's known answers and hard negatives of each query, if any; each document once
    logits    q_h · k_d / t over the pool, by the model's own head; with `stage_loss` (q_h · k_d + γ M) / t
    loss      InfoNCE without false negatives (`info_nce`): known answers never stand against each other

Keywords are left out of training, though not of serving: with them the encoder learns only the remainder, and
ranks worse by itself and no better with them (SciFact's training queries, a fold held out: dense .680 → .658
with keywords in the logits, → .695 without; hybrid then .761 and .770). Their weight is chosen afterwards by
held-out queries (finetune/full.py).

The gradient of the whole batch is exact at the memory of a chunk (distributed.py), and the same for any
number of processes. Negatives come from an index that moves with the encoder (`MovingIndex`): encoding all of
it at once would stop training for long, and never doing so would mine stale negatives (ANCE, Xiong et al.
2021, arXiv:2007.00808, section 3). So every step encodes the next slice again: after `steps_a_round` steps no
embedding is older than that, training never waits, and a seed determines everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.kernel import log_mix, raw_scores
from dsearch.encoder import EncoderTraining, LearningEncoder, TextEncoder
from dsearch.encoder.encoder import TokenBatch
from dsearch.errors import InvalidRequest, amount
from dsearch.products import product
from dsearch.training.data.examples import Examples, mined_negatives
from dsearch.training.head_task import PoolMatches
from dsearch.training.loop.distributed import (
    Processes,
    Texts,
    cached_backward,
    cached_token_backward,
    encoded_by_all,
)
from dsearch.training.loop.loop import Epoch, Student, TrainingDiverged, TrainingSchedule, Watch, run_course
from dsearch.training.losses.objectives import info_nce
from dsearch.training.options import require_at_least_one, require_rates
from dsearch.training.relevant import padded
from dsearch.types import Progress

_RENEWED_AT_A_TIME = 512

Contents = Callable[[Int64[np.ndarray, " some"]], list[str]]
"""The texts of the documents at these positions."""


class MovingIndex:
    """Exact search over embeddings of different ages.

    Args:
        embeddings: stored embedding of every position.
        visible: searchable positions, ascending.
        contents: function that returns the texts of positions.
        steps_a_round: number of steps to encode everything again; 0 keeps the stored embeddings.
        chunk: number of texts encoded at a time.
        processes: group of processes that share the encoding.
    """

    def __init__(
        self,
        embeddings: Float32[np.ndarray, "positions encoder_dim"],
        visible: Int64[np.ndarray, " documents"],
        contents: Contents,
        *,
        steps_a_round: int,
        chunk: int,
        processes: Processes,
    ):
        self.embeddings = torch.as_tensor(np.array(embeddings))
        self._visible, self._contents = visible, contents
        self._slice = -(-len(visible) // steps_a_round) if steps_a_round else 0
        self._chunk, self._processes = chunk, processes
        self._next = 0

    def step(self, encoder: LearningEncoder) -> None:
        """Encode the next slice again."""
        if self._slice:
            at = (self._next + np.arange(min(self._slice, len(self._visible)))) % len(self._visible)
            self._encode(encoder, self._visible[at])
            self._next = int((self._next + self._slice) % len(self._visible))

    def renew(self, encoder: LearningEncoder, on_progress: Callable[[Progress], None] | None = None) -> None:
        """Encode everything again: a refresh at once."""
        started = time.monotonic()
        for start in range(0, len(self._visible), _RENEWED_AT_A_TIME):
            some = self._visible[start : start + _RENEWED_AT_A_TIME]
            self._encode(encoder, some)
            if on_progress is not None:
                elapsed_s = time.monotonic() - started
                on_progress(Progress("encode", start + len(some), len(self._visible), elapsed_s))

    def nearest(
        self, queries: Float[Tensor, "batch encoder_dim"], k: int
    ) -> Int64[np.ndarray, "batch found"]:
        """The k visible positions of highest inner product for each query, best first."""
        visible = torch.as_tensor(self._visible)
        scores = product(queries.cpu().float(), self.embeddings[visible])
        best = scores.topk(min(k, len(visible)), dim=1).indices
        return self._visible[best.numpy()]

    def staleness(
        self, encoder: LearningEncoder, queries: Float[Tensor, "batch encoder_dim"], *, depth: int = 10
    ) -> float:
        """The share of the first `depth` hits that a refresh would change.

        Over-retrieved: five times as many are encoded afresh and ranked again, so what the refresh would
        bring up from below those is not seen; in a collection of up to so many documents nothing is.
        """
        before = self.nearest(queries, 5 * depth)
        pool, at = np.unique(before, return_inverse=True)
        fresh = torch.as_tensor(
            encoded_by_all(
                encoder, self._contents(pool), "document", chunk=self._chunk, processes=self._processes
            )
        )
        of_each = fresh[torch.as_tensor(at.reshape(before.shape))]
        scores = torch.einsum("bd,bkd->bk", queries.cpu().float(), of_each)
        depth = min(depth, before.shape[1])
        order = scores.topk(depth, dim=1).indices.numpy()
        after = np.take_along_axis(before, order, axis=1)
        overlap = [
            len(set(a) & set(b)) for a, b in zip(before[:, :depth].tolist(), after.tolist(), strict=True)
        ]
        return 1 - float(np.mean(overlap)) / depth

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"embeddings": self.embeddings, "next": torch.tensor(self._next)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.embeddings, self._next = state["embeddings"].clone(), int(state["next"])

    def _encode(self, encoder: LearningEncoder, positions: Int64[np.ndarray, " some"]) -> None:
        fresh = encoded_by_all(
            encoder, self._contents(positions), "document", chunk=self._chunk, processes=self._processes
        )
        self.embeddings[torch.as_tensor(positions)] = torch.as_tensor(fresh)


_STALENESS_QUERIES = 16  # each asks for fifty documents to be encoded again


@dataclass(frozen=True, slots=True)
class FullOptions:
    """Options for training both encoders.

    The defaults are those of sentence-transformers' trainer, for one epoch: few queries per step, since small
    data sets have few steps.

    Attributes:
        epochs: passes over the queries.
        batch_size: queries per step; memory does not depend on it.
        chunk: texts encoded with a graph at a time; memory depends on it.
        encoder_learning_rate: Adam's learning rate of the encoder.
        learning_rate: Adam's learning rate of the temperature.
        negatives: number of hard negatives per query; each costs as much as an answer.
        depth: number of nearest documents that hard negatives are drawn from.
        margin: see data/examples.py.
        steps_a_round: number of steps in which the whole index is encoded again; 0 leaves it unchanged.
        encoder_method: "all" weights, or "lora".
        lora_rank: see `TrainingOptions`.
        keywords: True to include the keyword score in evaluation and serving.
        query_keys: True to allow training queries as further keys of their answers; held-out queries choose
            their strength, see data/examples.py.
        held_out: one in this number of queries is held out for evaluation; 0 for none.
        precision: "float32", or "bfloat16" for autocast.
        compiled: True to run the transformer through torch.compile.
        stage_loss: True to learn by the matches of tokens too, see head_task.py; in one process.
        seed: random seed.
    """

    epochs: int = 1
    batch_size: int = 8
    chunk: int = 16
    encoder_learning_rate: float = 5e-5
    learning_rate: float = 1e-3
    negatives: int = 0
    depth: int = 50
    margin: float = 0.95
    steps_a_round: int = 100
    encoder_method: str = "all"
    lora_rank: int = 16
    keywords: bool = True
    query_keys: bool = True
    held_out: int = 5
    precision: str = "float32"
    compiled: bool = False
    stage_loss: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least_one(self, "epochs", "batch_size", "chunk", "depth")
        for name in ("negatives", "steps_a_round"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}; use an integer of at least 0")
        require_rates(self, "encoder_learning_rate", "learning_rate")
        if not self.margin > 0:
            raise InvalidRequest(f"margin={self.margin}; use a number above 0")
        if not (self.held_out == 0 or self.held_out >= 2):
            raise InvalidRequest(f"held_out={self.held_out}; use 2 or more, or 0 to hold nothing out")
        if self.precision not in ("float32", "bfloat16"):
            raise InvalidRequest(f"precision={self.precision!r}; use float32 or bfloat16")
        EncoderTraining(self.encoder_method, self.lora_rank)


@dataclass(frozen=True, slots=True)
class FullyTrained:
    """Result of a full training: head and encoder, and every document encoded by it.

    Attributes:
        student: head and encoder.
        index: index of the documents; `renew` was not called yet.
    """

    student: Student
    index: MovingIndex


OnFull = Callable[[Epoch, Student, MovingIndex, float], bool]


def train_full(
    examples: Examples,
    contents: Contents,
    options: FullOptions,
    *,
    encoder: TextEncoder,
    start: Head | None = None,
    watch: Watch | None = None,
    processes: Processes | None = None,
    on_epoch: OnFull | None = None,
) -> FullyTrained:
    """Train a copy of the encoder on queries and documents alike.

    Args:
        examples: queries and their documents.
        contents: function that returns the documents' texts.
        options: options of the training.
        encoder: encoder of the collection; it is not changed.
        start: keyword weight, k1, b and hop strength are taken from it; both projections stay the identity.
        watch: who follows, and where checkpoints are kept; in every process the same.
        processes: those that train together.
        on_epoch: told the epoch, what is trained, its index, and the index's staleness (`MovingIndex`).

    Raises:
        TrainingDiverged: NaN or infinity in the loss; its `student` is as it was after the last whole epoch.
        Cancelled: the watch said so.
        InvalidRequest: an encoder that has no weights to train.
    """
    processes, examples = processes or Processes(), examples.weighed(start)
    head = Head(examples.states.shape[1], seed=options.seed)
    if start is not None:
        head.start_from(start)
    how = EncoderTraining(options.encoder_method, options.lora_rank, 2 * options.lora_rank)
    student = Student(head, LearningEncoder(encoder, how, seed=options.seed))
    assert student.encoder is not None
    head.to(next(student.encoder.parameters()).device)
    task = FullTask(examples, contents, options, student, processes)
    course = TrainingSchedule(len(examples), options.batch_size, options.epochs, options.seed)

    def report(epoch: Epoch) -> bool:
        return on_epoch is None or on_epoch(epoch, student, task.index, task.staleness())

    try:
        run_course(task, course, watch=watch, on_epoch=report)
    except TrainingDiverged as error:
        error.student = _finished(student)
        raise
    return FullyTrained(_finished(student), task.index)


def _finished(student: Student) -> Student:
    student.head.cpu()
    return student.eval()


class FullTask:
    """The `Task` of scope full."""

    def __init__(
        self,
        examples: Examples,
        contents: Contents,
        options: FullOptions,
        student: Student,
        processes: Processes,
    ):
        assert student.encoder is not None
        self.trained, self._encoder = student, student.encoder
        self._examples, self._contents, self._options = examples, contents, options
        self._processes, self._chunk = processes, options.chunk
        snapshot = examples.snapshot
        self._stored = snapshot.embeddings(np.arange(snapshot.positions))
        self.index = MovingIndex(
            self._stored,
            snapshot.visible(),
            contents,
            steps_a_round=options.steps_a_round,
            chunk=options.chunk,
            processes=processes,
        )
        self._matches = PoolMatches(snapshot) if options.stage_loss else None
        if options.stage_loss and processes.count > 1:
            raise InvalidRequest("stage_loss in several processes; leave it out, or train in one")
        if options.compiled:
            _compile(self._encoder)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The encoder and the temperature; the projections stay."""
        head = self.trained.head
        for parameter in head.parameters():
            parameter.requires_grad_(parameter is head.log_temperature)
        return [
            {"params": self._encoder.learning(), "lr": self._options.encoder_learning_rate},
            {"params": [head.log_temperature], "lr": self._options.learning_rate},
        ]

    def step(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, " losses"]:
        """Mine, then the exact gradient of the batch."""
        with self._precision():
            if self._options.negatives:  # nobody else asks the index
                self.index.step(self._encoder)
            pool = self.pool(batch, generator)
            value = self.backward(batch, pool)
        torch.nn.utils.clip_grad_norm_(self._encoder.learning(), 1.0)
        return torch.stack([value, torch.zeros_like(value), value])

    def pool(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Int64[np.ndarray, " pool"]:
        """Positions of the batch's answers and hard negatives, ascending."""
        examples, options = self._examples, self._options
        which = batch.tolist()
        answers = [examples.relevant[i][0] for i in which]
        if not options.negatives:
            return np.unique(np.concatenate(answers))
        queries = encoded_by_all(
            self._encoder,
            [examples.texts[i] for i in which],
            "query",
            chunk=self._chunk,
            processes=self._processes,
        )
        candidates = self.index.nearest(torch.as_tensor(queries), options.depth)
        start = examples.states[which]
        scores = np.einsum("bd,bkd->bk", start, self._stored[candidates])
        pairs = zip(answers, start, strict=True)
        best = np.array([(self._stored[at] @ query).max() for at, query in pairs], np.float32)
        mined = mined_negatives(
            candidates,
            scores,
            self._no_negatives(which),
            best,
            count=options.negatives,
            margin=options.margin,
            generator=generator,
        )
        return np.unique(np.concatenate([*answers, *mined]))

    def backward(self, batch: Int64[Tensor, " batch"], pool: Int64[np.ndarray, " pool"]) -> Float[Tensor, ""]:
        """Leave the gradient of the batch over this pool; the loss."""
        examples = self._examples
        which = batch.tolist()
        relevant, grades = padded([examples.relevant[i] for i in which])
        target = np.zeros((len(which), len(pool)), np.float32)
        at = np.minimum(np.searchsorted(pool, relevant), len(pool) - 1)
        np.add.at(target, (np.arange(len(which))[:, None], at), grades)
        target /= target.sum(1, keepdims=True)
        head = self.trained.head

        def loss(embedded: list[Tensor], terms: Float[Tensor, "batch pool"] | None = None) -> Tensor:
            queries, documents = (part.to(head.log_temperature.device) for part in embedded)
            folded = head.fold(head.queries(queries))
            dense = folded @ documents.T
            raw = raw_scores(dense, second=None if terms is None else terms.to(dense))
            log_heads = (raw / head.temperature).log_softmax(-1)
            mixed = log_mix(log_heads, head.mixture_of(folded))
            return info_nce(mixed, torch.as_tensor(target).to(mixed))

        queries, documents = [examples.texts[i] for i in which], self._contents(pool)
        texts: list[Texts] = [(queries, "query"), (documents, "document")]
        if (matches := self._matches) is None:
            return cached_backward(self._encoder, texts, loss, chunk=self._chunk, processes=self._processes)

        def loss_of_stages(batches: list[TokenBatch]) -> Tensor:
            terms = matches(batches[0], queries, batches[1], documents)
            return loss([batch.embeddings for batch in batches], terms)

        return cached_token_backward(self._encoder, texts, loss_of_stages, chunk=self._chunk)

    def staleness(self) -> float:
        """Staleness of the index, measured with some of the queries."""
        with self._precision():
            queries = encoded_by_all(
                self._encoder,
                self._examples.texts[:_STALENESS_QUERIES],
                "query",
                chunk=self._chunk,
                processes=self._processes,
            )
            return self.index.staleness(self._encoder, torch.as_tensor(queries))

    def lessen(self) -> str | None:
        """Texts in smaller chunks; several processes would no longer be at the same one."""
        if self._chunk == 1 or self._processes.count > 1:
            return None
        self._chunk = -(-self._chunk // 2)
        return f"{amount(self._chunk, 'text')} at a time from now on"

    def more_state(self) -> dict[str, Tensor]:
        """The index."""
        return self.index.state()

    def load_more_state(self, state: dict[str, Tensor]) -> None:
        """Put the index back."""
        self.index.load_state(state)

    def _no_negatives(self, which: list[int]) -> list[np.ndarray]:
        """Known answers, and what is hidden from a query."""
        hidden = self._examples.hidden
        nothing = np.zeros(0, np.int64)
        return [
            np.concatenate([self._examples.relevant[i][0], nothing if hidden is None else hidden[i]])
            for i in which
        ]

    def _precision(self) -> AbstractContextManager[Any]:
        if self._options.precision == "float32":
            return nullcontext()
        device = next(self._encoder.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16)


def _compile(encoder: LearningEncoder) -> None:
    """Compile the transformer inside; texts have any length, so shapes are dynamic."""
    model = getattr(encoder.encoder, "model", None)
    inner = getattr(model[0], "auto_model", None) if model is not None else None
    if inner is None:
        raise InvalidRequest(
            f"encoder {encoder.identity.name!r} has no transformer to compile; leave compiled out"
        )
    # Not `inner.compile`: sentence-transformers 6 calls `forward`, which that leaves as it is.
    inner.forward = torch.compile(inner.forward, dynamic=True)
