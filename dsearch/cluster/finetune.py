"""`finetune` over shards: the same training, with each step computed by the shards.

    finetune(examples, options, task=over(corpus))

Queries, judgements and held-out rankings come from the home, which has the generation that was split. The
shards compute the exact softmax and its gradients, nearly all of the work. Random draws are those of one
process, so the head is the same up to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.cluster.training import ShardedCorpus, listwise, retention
from dsearch.engine import Collection
from dsearch.engine.snapshot import NONE
from dsearch.errors import Command, Conflict, InvalidRequest, NotInCluster
from dsearch.training.data.examples import Examples
from dsearch.training.head_task import MakeTask, descend, head_groups
from dsearch.training.loop.loop import NothingFurther, Student
from dsearch.training.losses.objectives import DEFAULT_OBJECTIVE
from dsearch.training.options import TrainingOptions
from dsearch.training.relevant import padded


def over(corpus: ShardedCorpus) -> MakeTask:
    """Return the `task` for `finetune` and `train_student` over these shards."""

    def make(examples: Examples, options: TrainingOptions, student: Student, device: str) -> ShardedDocuments:
        require_trainable(options)
        return ShardedDocuments(corpus, examples, options, student)

    return make


def require_trainable(options: TrainingOptions) -> None:
    """Raise InvalidRequest for another scope than head or another objective than listwise."""
    if options.scope != "head":
        raise InvalidRequest(f"scope={options.scope!r} does not train over shards; use scope='head'")
    if options.objective != DEFAULT_OBJECTIVE:
        raise InvalidRequest(
            f"objective={options.objective!r} does not train over shards; use {DEFAULT_OBJECTIVE!r}"
        )


def require_same_documents(corpus: ShardedCorpus, collection: Collection) -> None:
    """Refuse shards of another generation than that of the examples.

    Raises:
        Conflict: another generation, or documents were written or deleted since.
        NotInCluster: documents with several passages.
    """
    snapshot = collection.snapshot
    release = corpus.release
    if release.source != snapshot.generation.manifest.digest or collection.stale:
        raise Conflict(
            f"the shards are of generation {release.generation} of {release.collection}, and there are newer "
            f"documents; start the shards again after a refresh",
            hint=Command("refresh", ("-c", collection.name)),
        )
    if snapshot.passages is not None:
        raise NotInCluster("documents with several passages do not train over shards; train in one process")


class ShardedDocuments(NothingFurther):
    """The `Task` of a head whose documents lie in shards.

    Args:
        corpus: all documents.
        examples: queries and their documents.
        options: training options.
        student: head to train.
    """

    def __init__(self, corpus: ShardedCorpus, examples: Examples, options: TrainingOptions, student: Student):
        self.trained = student
        self._corpus, self._examples, self._options = corpus, examples, options
        relevant, grades = padded(examples.relevant)
        target = grades / grades.sum(1, keepdims=True)
        if examples.weights is not None:
            target = target * examples.weights[:, None]
        self._relevant, self._target = np.maximum(relevant, NONE), torch.as_tensor(target)
        self._states = torch.as_tensor(examples.states)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters of the head."""
        return head_groups(self.trained.head, self._options)

    def step(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, " losses"]:
        """Compute objective, retention and decay, as for documents in this process."""
        options, head, which = self._options, self.trained.head, batch.tolist()
        texts = [self._examples.texts[i] for i in which] if options.keywords else None
        loss = listwise(
            self._corpus, head, self._states[batch], texts, self._relevant[which], self._target[batch]
        )
        documents = self._corpus.release.documents
        drawn = torch.randint(documents, (options.retention_batch,), generator=generator)
        drift = retention(self._corpus, head, drawn.numpy()) if options.retention else torch.zeros(())
        return descend(loss, drift, head, options)
