"""Train a head with frozen documents, and in scope `query` the query encoder with it.

Every step has the exact softmax over the stored embeddings (objectives.py) and the retention term; the loop
is in loop.py. It is independent of qrels and of models on disk.

An encoder that learns by tokens too has the loss of a ranking by two stages in addition:

    − Σ_d p(d) log softmax_d (l(q, d) + γ M(q, d) / t)          over the candidates of the first stage

p: shares of the grades. γ stays as it starts: it is fitted afterwards, on queries that the encoder did not
learn from. A query without an answer among its candidates has no part. In scope query the stored tokens of
documents stay (`StageLoss`); in scope full both sides are encoded in the graph (`PoolMatches`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.attention.late_interaction import Interactions
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import EncoderTraining, LearningEncoder, TextEncoder
from dsearch.encoder.encoder import TokenBatch
from dsearch.engine import Snapshot
from dsearch.engine.indexing.tokens import is_of_word
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.snapshot import NONE, query_tokens_in_graph
from dsearch.errors import Command, InvalidRequest, amount
from dsearch.training.data.examples import Examples
from dsearch.training.loop.loop import (
    Epoch,
    NothingFurther,
    Student,
    TrainingDiverged,
    TrainingSchedule,
    TrainingTask,
    Watch,
    run_course,
)
from dsearch.training.losses.objectives import OBJECTIVES, TEACHER, Batch, FrozenAttention, retention
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.options import STORED_TYPES, TrainingOptions
from dsearch.training.ranking import KeywordScores, corpus_embeddings
from dsearch.training.relevant import Relevant, padded
from dsearch.types import Mode


class StageLoss:
    """The loss, over the documents of some examples.

    Args:
        examples: judged queries; their snapshot has tokens.
        keywords: whether keywords have a part in the first stage.

    Raises:
        InvalidRequest: the documents have no tokens.
    """

    def __init__(self, examples: Examples, *, keywords: bool):
        self._examples = examples
        self._stage = _stage_of(examples.snapshot)
        self._mode: Mode = "hybrid" if keywords else "dense"

    def __call__(self, head: Head, encoded: TokenBatch, which: list[int]) -> Float[Tensor, ""]:
        """The mean over the queries at these indices, which the encoder has encoded in the graph."""
        examples = self._examples
        texts = [examples.texts[at] for at in which]
        parts = zip(encoded.states, encoded.spans, texts, strict=True)
        tokens = [query_tokens_in_graph(*part, examples.snapshot) for part in parts]
        stage = self._stage.to(head.log_temperature.device)
        layer = SearchLayer(examples.snapshot, head.reranking(stage), mode=self._mode, hops=1, stages=2)
        states = encoded.embeddings.to(head.log_temperature.device)
        output = layer(states, texts, tokens=tokens)
        missing = output.positions == NONE
        if examples.hidden is not None:
            for row, at in enumerate(which):
                missing[row] |= np.isin(output.positions[row], examples.hidden[at])
        grades = Relevant([examples.relevant[at] for at in which]).gains(output.positions)
        grades = np.where(missing, 0.0, grades)
        target = torch.as_tensor(grades / np.maximum(grades.sum(1, keepdims=True), 1e-12))
        out = torch.as_tensor(missing).to(output.scores.device)
        # Filled before the division too: by −inf the temperature's gradient would be NaN.
        logits = (output.scores.masked_fill(out, 0.0) / head.temperature).masked_fill(out, -torch.inf)
        log_shares = logits.log_softmax(1)
        lost = torch.where(target.to(logits) > 0, target.to(logits) * log_shares, 0.0)
        return -lost.sum() / len(which)


class PoolMatches:
    """γ M of each query of a batch with each document of a pool, both encoded in the graph.

    Args:
        snapshot: has the projection of tokens, and the words that are no terms.

    Raises:
        InvalidRequest: its documents have no tokens.
    """

    def __init__(self, snapshot: Snapshot):
        self._snapshot, self._stage = snapshot, _stage_of(snapshot)
        self._stop_words = frozenset(snapshot.keyword.tokenizer.stop_words)

    def __call__(
        self,
        queries: TokenBatch,
        query_texts: Sequence[str],
        documents: TokenBatch,
        document_texts: Sequence[str],
    ) -> Float[Tensor, "queries pool"]:
        """The term of every pair, with documents' tokens as they are before rounding; 0 without a word."""
        by_document = [
            states[torch.as_tensor(self._of_words(text, spans), device=states.device)]
            for states, spans, text in zip(documents.states, documents.spans, document_texts, strict=True)
        ]
        counts = torch.tensor([len(states) for states in by_document], device=by_document[0].device)
        assert self._snapshot.tokens is not None
        every = torch.cat(by_document)
        projection = torch.as_tensor(self._snapshot.tokens.codec.projection).to(every)
        tokens = torch.nn.functional.normalize(every @ projection.mT, dim=-1)
        stage = self._stage.to(every)
        steps = tokens.new_ones(tokens.shape[1])
        rows: list[Tensor] = []
        for states, spans, text in zip(queries.states, queries.spans, query_texts, strict=True):
            query = query_tokens_in_graph(states, spans, text, self._snapshot)
            weights = torch.as_tensor(query.weights).to(tokens)
            of_pool = stage.matches(
                Interactions(torch.as_tensor(query.states), weights, tokens, steps, counts)
            )
            rows.append(stage.strength * of_pool.sharp)
        return torch.stack(rows)

    def _of_words(self, text: str, spans: Int64[np.ndarray, "tokens 2"]) -> Int64[np.ndarray, " words"]:
        wanted = [is_of_word(text, start, end, self._stop_words) for start, end in spans.tolist()]
        return np.flatnonzero(np.array(wanted, bool))


def _stage_of(snapshot: Snapshot) -> SecondStage:
    """An untrained second stage for the tokens of a state.

    Raises:
        InvalidRequest: its documents have none.
    """
    if snapshot.tokens is None:
        raise InvalidRequest(
            "stage_loss in a collection without tokens; leave it out, or add them: dsearch index -c "
            "COLLECTION --second-stage"
        )
    return SecondStage().requires_grad_(False)


__all__ = ["Epoch", "MakeTask", "OnEpoch", "OnStudent", "TrainingDiverged", "train_head", "train_student"]

_SCALARS_LEARN_FASTER = 3.0
_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.float32))

OnEpoch = Callable[[Epoch, Head], bool]
OnStudent = Callable[[Epoch, Student], bool]
MakeTask = Callable[[Examples, TrainingOptions, Student, str], TrainingTask]
"""(examples, options, what learns, device) → a step of it, where the documents lie elsewhere."""


def train_head(
    examples: Examples,
    options: TrainingOptions,
    *,
    start: Head | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    on_epoch: OnEpoch | None = None,
) -> Head:
    """Train a head from the identity; equal examples and options give an equal head on the same machine.

    Args:
        examples: queries and their documents.
        options: options of the training.
        start: keyword weight, k1 and b, and hop strength are taken from it; only the first learns.
        epochs: stop after so many, on the schedule of `options.epochs`; all of them when None.
        device: where the arithmetic runs; the corpus' embeddings are moved there.
        on_epoch: told after each epoch; training stops when it returns False.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        InvalidRequest: an objective that learns from a teacher, without a teacher's scores.
    """

    def report(epoch: Epoch, student: Student) -> bool:
        return on_epoch is None or on_epoch(epoch, student.head)

    return train_student(examples, options, start=start, epochs=epochs, device=device, on_epoch=report).head


def train_student(
    examples: Examples,
    options: TrainingOptions,
    *,
    encoder: TextEncoder | None = None,
    start: Head | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    watch: Watch | None = None,
    on_epoch: OnStudent | None = None,
    task: MakeTask | None = None,
) -> Student:
    """`train_head`, and where an encoder is given a copy of it that learns with the head.

    Args:
        examples: queries and their documents.
        options: options of the training.
        encoder: of the queries; it stays as it is. The stored query embeddings are used when None.
        start: keyword weight, k1 and b, and hop strength are taken from it; only the first learns.
        epochs: stop after so many, on the schedule of `options.epochs`; all of them when None.
        device: where the arithmetic of the head runs; an encoder's runs where the encoder is.
        watch: who follows, and where checkpoints are kept.
        on_epoch: told after each epoch; training stops when it returns False.
        task: makes the steps, over documents that lie elsewhere; those of the snapshot, here, when None.

    Raises:
        TrainingDiverged: NaN or infinity in the loss; its `student` is as it was after the last whole epoch.
        Cancelled: the watch said so.
        InvalidRequest: an objective that learns from a teacher, without a teacher's scores; an encoder that
            has no weights to train.
    """
    if options.objective == TEACHER and examples.teacher is None:
        raise InvalidRequest(
            f"objective={options.objective!r} learns from a teacher's scores, and there are none; use "
            "another objective, or give them",
            hint=Command("train", ("--teacher", "FILE")),
        )
    examples = examples.weighed(start)
    student = _new_student(examples, options, encoder, start, device)
    steps = (task or _FrozenDocuments)(examples, options, student, device)
    course = TrainingSchedule(len(examples), options.batch_size, options.epochs, options.seed, epochs)

    def report(epoch: Epoch) -> bool:
        return on_epoch is None or on_epoch(epoch, student)

    try:
        run_course(steps, course, watch=watch, on_epoch=report)
    except TrainingDiverged as error:
        error.student = _finished(student)
        raise
    return _finished(student)


def new_head(encoder_dim: int, options: TrainingOptions, start: Head | None) -> Head:
    """Initial head of a training: identity projections, with keyword and hop settings of `start`."""
    head = Head(
        encoder_dim,
        heads=options.heads,
        seed=options.seed,
        query_side=options.query_side,
    )
    if options.excitation:
        head.open_excitation()
    if start is not None:
        head.start_from(start)
    return head


def _finished(student: Student) -> Student:
    student.head.cpu()
    return student.eval()


def _new_student(
    examples: Examples,
    options: TrainingOptions,
    encoder: TextEncoder | None,
    start: Head | None,
    device: str,
) -> Student:
    head = new_head(examples.states.shape[1], options, start).to(device)
    if encoder is None:
        return Student(head)
    how = EncoderTraining(options.encoder_method, options.lora_rank, 2 * options.lora_rank)
    return Student(head, LearningEncoder(encoder, how, seed=options.seed))


class _FrozenDocuments(NothingFurther):
    """The `TrainingTask` of the scopes head and query."""

    def __init__(self, examples: Examples, options: TrainingOptions, student: Student, device: str):
        self.trained = student
        self._examples, self._options = examples, options
        corpus = examples.cached("corpus", lambda: corpus_embeddings(examples.snapshot))
        further = examples.cached("further", lambda: FurtherPassages.of(examples.snapshot, corpus))
        dtype = STORED_TYPES[options.precision]
        self._corpus = corpus.to(device, dtype)
        self._further = None if further is None else further.to(self._corpus.device, dtype)
        # What retention holds in place: every passage, as a document of its own.
        self._retained = self._corpus if self._further is None else self._further.beside(self._corpus)
        self._batches = _Batches(examples, device)
        self._objective = OBJECTIVES[options.objective]
        self._keyword = KeywordScores(examples, device) if options.keywords else None
        self._stage = StageLoss(examples, keywords=options.keywords) if options.stage_loss else None
        self._at_once = options.batch_size
        steps = -(-len(examples) // options.batch_size) * options.epochs
        draws = steps * options.retention_batch if options.retention else 0
        whole = draws >= len(self._retained)
        self._frozen = examples.cached(
            ("frozen", device, whole, dtype), lambda: FrozenAttention(self._retained, draws)
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The head's, and the encoder's at a rate of its own."""
        groups = head_groups(self.trained.head, self._options)
        if self.trained.encoder is not None:
            groups.append(
                {"params": self.trained.encoder.learning(), "lr": self._options.encoder_learning_rate}
            )
        return groups

    def step(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, " losses"]:
        """Objective, retention and decay; see objectives.py."""
        options, head = self._options, self.trained.head
        if len(batch) <= self._at_once:
            loss = self._loss(batch, generator)
        else:
            loss = torch.zeros((), device=self._corpus.device)
            for part in batch.split(self._at_once):
                of_part = self._loss(part, generator) * (len(part) / len(batch))
                of_part.backward()
                loss += of_part.detach()
        drawn = torch.randint(len(self._retained), (options.retention_batch,), generator=generator)
        retained = torch.zeros((), device=self._corpus.device)
        if options.retention:
            retained = retention(head, self._retained[drawn], self._retained, self._frozen(drawn))
        losses = descend(loss, retained, head, options)
        if self.trained.encoder is not None:
            torch.nn.utils.clip_grad_norm_(self.trained.encoder.learning(), 1.0)
        return losses

    def lessen(self) -> str | None:
        """Queries in halves: every objective is a mean over them."""
        if self._at_once == 1:
            return None
        self._at_once = -(-self._at_once // 2)
        return f"{amount(self._at_once, 'query')} at a time from now on"

    def _precision(self) -> AbstractContextManager[Any]:
        """Autocast of the query encoder, or none."""
        if self._options.precision == "float32" or self.trained.encoder is None:
            return nullcontext()
        device = next(self.trained.encoder.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16)

    def _loss(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, ""]:
        head, corpus = self.trained.head, self._corpus
        states = encoded = None
        if self.trained.encoder is not None and self._stage is not None:
            texts = [self._examples.texts[i] for i in batch.tolist()]
            with self._precision():
                encoded = self.trained.encoder.embed_tokens(texts, "query")
            states = encoded.embeddings.to(corpus.device).float()
        elif self.trained.encoder is not None:
            with self._precision():
                states = self.trained.embed([self._examples.texts[i] for i in batch.tolist()])
            states = states.to(corpus.device).float()
        keyword = self._keyword and self._keyword(batch)
        examples = self._batches.of(head, corpus, batch, keyword, states, generator)
        loss = self._objective(replace(examples, further=self._further))
        if self._stage is None or encoded is None:
            return loss
        return loss + self._stage(head, encoded, batch.tolist())


def descend(
    loss: Float[Tensor, ""], retention: Float[Tensor, ""], head: Head, options: TrainingOptions
) -> Float[Tensor, " losses"]:
    """Leave the gradients of objective, retention and decay; (objective, retention, all of it)."""
    total = loss + options.retention * retention + options.decay * head.distance_from_identity()
    total.backward()
    return torch.stack([loss, retention, total]).detach()


def head_groups(head: Head, options: TrainingOptions) -> list[dict[str, Any]]:
    """Learned parameters with their learning rates; values and hops never."""
    fusion: list[nn.Parameter] = [head.log_temperature]
    if options.keywords:
        fusion.append(head.keyword_weight)
    if options.heads > 1:
        fusion.append(head.mixture_logits)
    shares = [] if head.excitation is None else [*head.excitation.parameters()]
    keys = [head.key_delta] if options.train_keys else []
    groups: list[dict[str, Any]] = [
        {"params": head.query_parameters() + keys + shares, "lr": options.learning_rate},
        {"params": fusion, "lr": options.learning_rate * _SCALARS_LEARN_FASTER},
    ]
    learning = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in head.parameters():
        parameter.requires_grad_(id(parameter) in learning)
    return groups


class _Batches:
    """Examples as tensors, once, and any of them as a `Batch`."""

    def __init__(self, examples: Examples, device: str):
        relevant, grades = padded(examples.relevant)
        target = grades / grades.sum(1, keepdims=True)
        if examples.weights is not None:
            target = target * examples.weights[:, None]  # losses linear in the target are weighted by it
        scored, teacher = padded(examples.teacher or [_NOTHING] * len(examples))
        self._states, self._relevant, self._target, self._scored, self._teacher, self._mask = (
            torch.as_tensor(array).to(device)
            for array in (
                examples.states,
                np.maximum(relevant, 0),
                target,
                np.maximum(scored, 0),
                teacher,
                scored >= 0,
            )
        )
        negatives = np.zeros(0, np.int64) if examples.negatives is None else examples.negatives
        judged = np.union1d(relevant[relevant >= 0], negatives)
        self._judged = torch.as_tensor(judged).to(device)
        self._examples = examples

    def of(
        self,
        head: Head,
        corpus: Tensor,
        which: Tensor,
        keyword: Tensor | None,
        states: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """The examples at these indices, with other query embeddings where those are given."""
        return Batch(
            head=head,
            states=self._states[which] if states is None else states,
            keyword=keyword,
            corpus=corpus,
            relevant=self._relevant[which],
            target=self._target[which],
            judged=self._judged,
            scored=self._scored[which],
            teacher=self._teacher[which],
            mask=self._mask[which],
            generator=generator,
        )
