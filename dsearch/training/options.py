"""Options of a training run of a head, and checks of those of a second stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.head import checked_query_side
from dsearch.encoder import EncoderTraining
from dsearch.encoder.reranker import load_reranker
from dsearch.engine import Collection
from dsearch.engine.state.caches import identity_of
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training.losses.objectives import DEFAULT_OBJECTIVE, OBJECTIVES

SCOPES = ("head", "query")
STORED_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options for training a head, and optionally the query encoder, to rank.

    The defaults were fixed by cross-validation within SciFact's training split (`dsearch guide decisions`).

    Attributes:
        epochs: passes over the examples; held-out examples may clearly select fewer.
        batch_size: examples per step.
        learning_rate: Adam's learning rate of the projections; the scalars learn three times as fast.
        retention: weight of the term that preserves the ranking of stored documents used as queries.
        retention_batch: number of such documents per step.
        decay: weight of Σ |Δ|²: pulls projections towards the identity, never towards zero.
        heads: number of query heads.
        query_side: form of the query projection: "linear", "low-rank" or "mlp", see head.py; None: linear for
            one head, low-rank for several.
        excitation: True to let each query move the shares of several heads.
        train_keys: True to learn the key projection too; otherwise only the query side learns.
        keywords: True to include the keyword score; otherwise the keyword weight is not trained.
        folds: number of folds, held out one after the other until enough examples were held out; 0 holds none
            out.
        seed: random seed.
        objective: training objective; see objectives.py.
        scope: "head", or "query": the query encoder learns too.
        encoder_method: method of the encoder: "lora", or "all" of its weights.
        lora_rank: rank of the product learned beside each layer; α is twice that.
        encoder_learning_rate: learning rate of the encoder.
        precision: of the documents' embeddings on the training's device, 4 bytes a number or 2; sums are in
            float32. With "bfloat16" the query encoder of scope "query" learns under autocast, too.
        stage_loss: True to add the loss of a ranking by two stages (head_task.py), in scope query.
        memory: fit a query memory too, and serve the head with it where held-out queries gain by it.
        tune: tune keyword weight, k1 and b, and hop strength first, without the held-out queries, and train
            from there. Training learns without a hop, so the hop strength is tuned again afterwards.
    """

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 1e-3
    retention: float = 3.0
    retention_batch: int = 64
    decay: float = 1e-3
    heads: int = 1
    query_side: str | None = None
    excitation: bool = False
    train_keys: bool = True
    keywords: bool = True
    folds: int = 3
    seed: int = 0
    objective: str = DEFAULT_OBJECTIVE
    scope: str = "head"
    encoder_method: str = "lora"
    lora_rank: int = 16
    encoder_learning_rate: float = 2e-4
    precision: str = "float32"
    stage_loss: bool = False
    tune: bool = True
    memory: bool = True

    def __post_init__(self) -> None:
        require_at_least_one(self, "epochs", "batch_size", "retention_batch", "heads")
        require_rates(self, "learning_rate", "encoder_learning_rate")
        require_weights(self, "retention", "decay")
        checked_query_side(self.query_side, self.heads)
        if self.excitation and self.heads < 2:
            raise InvalidRequest("excitation moves the shares of several heads; use heads=2 or more")
        require_folds(self.folds)
        if self.scope not in SCOPES:
            raise InvalidRequest(f"scope={self.scope!r}; use one of {', '.join(SCOPES)}")
        if self.precision not in STORED_TYPES:
            raise InvalidRequest(f"precision={self.precision!r}; use float32 or bfloat16")
        EncoderTraining(self.encoder_method, self.lora_rank)
        if self.objective not in OBJECTIVES:
            raise InvalidRequest(f"objective={self.objective!r}; use one of {', '.join(OBJECTIVES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """Options for learning the values of a field, see values.py.

    Attributes:
        epochs: passes over the documents; held-out documents may clearly select fewer.
        batch_size: documents per step.
        learning_rate: Adam's learning rate.
        decay: weight of Σ |Δ|² of the value projection: pulls it towards the identity.
        keywords: True to pool with the keyword score, as in a prediction for a text; it has no part in a
            collection with embeddings of its own.
        folds: number of folds, held out one after the other until enough documents were held out; 0 holds
            none out.
        seed: random seed.
        most_examples: largest number of documents to learn from, sampled if there are more; all documents are
            evidence.
    """

    epochs: int = 60
    batch_size: int = 64
    learning_rate: float = 1e-3
    decay: float = 1e-3
    keywords: bool = True
    folds: int = 3
    seed: int = 0
    most_examples: int = 5000

    def __post_init__(self) -> None:
        require_at_least_one(self, "epochs", "batch_size", "most_examples")
        require_rates(self, "learning_rate")
        require_weights(self, "decay")
        require_folds(self.folds)


def query_options(**chosen: Any) -> TrainingOptions:
    """The defaults of scope `query`: fewer epochs, since the encoder costs more than the rest.

    They were chosen on held-out folds of SciFact's training split.
    """
    return TrainingOptions(**{"scope": "query", "epochs": 4, **chosen})


def self_supervised_options(**chosen: Any) -> TrainingOptions:
    """The defaults for learning from the corpus alone: a short run, without keywords.

    A sentence stands in the document that it was taken from, so keywords would answer every such query. Batch
    size and learning rate were chosen on held-out sentences of the Python documentation, two seeds.
    """
    return TrainingOptions(
        **{
            "epochs": 2,
            "batch_size": 32,
            "learning_rate": 5e-4,
            "keywords": False,
            "tune": False,
            "memory": False,
            **chosen,
        }
    )


def feedback_options(**chosen: Any) -> TrainingOptions:
    """The defaults for learning from clicks: softmax over the documents that somebody clicked on alone.

    Clicks say nothing of what was not shown. Over the whole corpus, training on simulated clicks lost .02 on
    queries of Cranfield that nobody had clicked on, over the clicked documents .006 to .011.
    """
    return TrainingOptions(**{"objective": "judged", "tune": False, "memory": False, **chosen})


def require_folds(folds: int) -> None:
    """Refuse a number of folds out of range.

    Raises:
        InvalidRequest: not 0, nor 2 to 20.
    """
    if not (folds == 0 or 2 <= folds <= 20):
        raise InvalidRequest(f"folds={folds}; use 2 to 20, or 0 to hold nothing out")


def require_at_least_one(options: object, *names: str) -> None:
    """Refuse options that count something and are below 1.

    Raises:
        InvalidRequest: naming the first such.
    """
    for name in names:
        if getattr(options, name) < 1:
            raise InvalidRequest(f"{name}={getattr(options, name)}; use an integer of at least 1")


def require_rates(options: object, *names: str) -> None:
    """Refuse learning rates that are none.

    Raises:
        InvalidRequest: naming the first that is not between 0 and 1.
    """
    for name in names:
        if not 0 < getattr(options, name) < 1:
            raise InvalidRequest(f"{name}={getattr(options, name)}; use a number between 0 and 1")


def require_weights(options: object, *names: str) -> None:
    """Refuse weights of penalties that are negative or no numbers.

    Raises:
        InvalidRequest: naming the first such.
    """
    for name in names:
        if not 0 <= getattr(options, name) < float("inf"):
            raise InvalidRequest(f"{name}={getattr(options, name)}; use a number of at least 0")


def check_stage_options(job: TrainingJob, collection: Collection) -> None:
    """Refuse a job whose options of a second stage would have no effect.

    Raises:
        InvalidRequest: no judged queries in scope head, or no tokens; a reranker that is none.
        RerankerUnavailable, MissingExtra: it cannot be loaded.
    """
    if job.stage_loss and (
        job.scope not in ("query", "full") or job.judgements is None or collection.snapshot.tokens is None
    ):
        raise InvalidRequest(
            "stage_loss: for judged queries, in scope query or full, in a collection with tokens; leave it "
            "out, or add them: dsearch index -c COLLECTION --second-stage"
        )
    if job.reranker is None:
        return
    judged_head = job.scope == "head" and job.source is None and job.judgements is not None
    judged_head = judged_head and job.field is None
    if not judged_head or collection.snapshot.tokens is None:
        raise InvalidRequest(
            "reranker: for judged queries, in scope head, in a collection with tokens; leave it out, or add "
            "them: dsearch index -c COLLECTION --second-stage"
        )
    reranker_of(job.reranker)


def reranker_of(name: str | None) -> RerankerIdentity | None:
    """Load the named reranker, from the hub if need be, and name its files; None without a name.

    Raises:
        InvalidRequest, RerankerUnavailable, MissingExtra: as `load_reranker`.
    """
    return None if name is None else identity_of(load_reranker(name, fetch=True))
