"""Records of the queries that a model was trained on: `QueryDrift` and `TrainingInfluences`.

`QueryDrift` measures how far recent queries lie from the training queries. When people begin to ask about
another topic nothing fails; answers only stop gaining from training. The distance between the two means shows
it:

    drift = max(0, ‖m − μ‖² − noise) / σ²          noise = s² Σw² / (Σw)² + σ² / n

with mean m and variance s² (the trace of the covariance) of recent queries, weighted by w, and mean μ
and variance σ² of the n training queries. It is the maximum mean discrepancy of a linear kernel, squared and
unbiased (Gretton et al. 2012, "A Kernel Two-Sample Test", lemma 6), in units of the training queries'
variance: 0 if both come from one source, 1 if the means lie as far apart as a training query from its own
mean. Differences that leave the mean unchanged are not detected.

`TrainingInfluences` records the training queries of a head, each with the direction of its gradient. With the
bilinear score s(q, d) = e_q · M e_d, the gradient of a listwise loss of training query i, at the head that
training started from, is

    −t ∂L_i/∂M = e_i ⊗ r_i        r_i = w_i Σ_d (p_i(d) − a_i(d)) e_d

p_i: the grades, as shares; a_i: the attention before training; w_i: the weight of the query. A step along
it moves the score of any other query and document by (e_q · e_i) (r_i · e_d), up to one factor that is the
same for all. That is TracIn with the start as its only checkpoint (Pruthi et al., NeurIPS 2020, section 3).
It needs only e_i and r_i: two rows a query, independent of later changes to the documents.

The approximation leaves out later steps, retention and decay, and the training of the keyword weight, the
temperature and the hop. It therefore shows which queries pulled, in which direction, and how hard relative to
the others; the amounts do not sum to the change.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int64
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dsearch.engine.models.tensors import metadata_of
from dsearch.errors import CorruptData
from dsearch.types import TrainingInfluence

HALF_LIFE = 500  # queries after which one counts half
LEAST = 30  # queries below which nothing is said
_TOGETHER = 32  # queries that are summed up at once, and weigh the same


def query_statistics(states: Float[np.ndarray, "queries encoder_dim"]) -> dict[str, Any]:
    """Return the statistics of a model's training queries for its record, as JSON.

    `{"count", "mean", "variance"}`: the mean as the base64 text of its float32 numbers, little-endian.
    """
    if not len(states):
        return {"count": 0, "mean": "", "variance": 0.0}
    exact = np.asarray(states, np.float64)
    mean = exact.mean(0)
    return {
        "count": len(exact),
        "mean": base64.b64encode(mean.astype("<f4").tobytes()).decode(),
        "variance": float(((exact - mean) ** 2).sum(1).mean()),
    }


@dataclass(slots=True, eq=False)
class _Lately:
    """Sums over the queries that one model answered; each weighs less the longer ago it was asked."""

    weight: float = 0.0
    weight_squared: float = 0.0
    total: Float[np.ndarray, " encoder_dim"] | float = 0.0
    squares: float = 0.0
    count: int = 0
    waiting: int = 0
    new: list[Float[np.ndarray, "queries encoder_dim"]] = field(default_factory=list[np.ndarray])

    def add(self, states: Float[np.ndarray, "queries encoder_dim"]) -> None:
        self.new.append(states)  # summed up some at a time: a search takes no part in it
        self.waiting += len(states)
        if self.waiting >= _TOGETHER:
            self.sum_up()

    def sum_up(self) -> None:
        if not self.new:
            return
        states, self.new, self.waiting = np.concatenate(self.new), [], 0
        fade = 0.5 ** (len(states) / HALF_LIFE)
        self.weight = fade * self.weight + len(states)
        self.weight_squared = fade * fade * self.weight_squared + len(states)
        self.total = fade * self.total + states.sum(0, dtype=np.float64)
        self.squares = fade * self.squares + float(np.square(states, dtype=np.float64).sum())
        self.count += len(states)


class QueryDrift:
    """Query drift of one collection, for the last model that answered; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model = ""
        self._lately = _Lately()

    def note(self, model: str, states: Float[np.ndarray, "queries encoder_dim"]) -> None:
        """Add queries that this model answered."""
        with self._lock:
            if model != self._model:
                self._model, self._lately = model, _Lately()
            self._lately.add(states)

    def of(self, model: str, trained_on: Mapping[str, Any] | None) -> float | None:
        """The drift; None when too few were asked, or the model does not say what it was trained on.

        Args:
            model: a version.
            trained_on: `query_statistics` of its training queries.
        """
        with self._lock:
            lately = self._lately
            lately.sum_up()
            if model != self._model or lately.count < LEAST or not trained_on or trained_on["count"] < 2:
                return None
            mean = np.asarray(lately.total) / lately.weight
            square = lately.squares / lately.weight
            share = lately.weight_squared / lately.weight**2
        reference = np.frombuffer(base64.b64decode(trained_on["mean"]), "<f4").astype(np.float64)
        variance = trained_on["variance"]
        if reference.shape != mean.shape or not variance > 0:
            return None
        noise = max(0.0, square - float(mean @ mean)) * share + variance / trained_on["count"]
        distance = float(np.square(mean - reference).sum())
        return max(0.0, distance - noise) / variance


LESSONS_NAME = "lessons.safetensors"
SHOWN = 5


@dataclass(frozen=True, slots=True)
class TrainingInfluences:
    """Training queries of a head, and their gradients.

    Attributes:
        states: e_i.
        pulls: r_i.
        owners: index of the query of each grade.
        rows: document of each grade, as a row of the store.
        grades: grades, above 0.
        texts: texts of the queries; None if they must not be stored: those of clicks, and of the corpus
            itself.
    """

    states: Float32[np.ndarray, "queries encoder_dim"]
    pulls: Float32[np.ndarray, "queries encoder_dim"]
    owners: Int64[np.ndarray, " grades"]
    rows: Int64[np.ndarray, " grades"]
    grades: Float32[np.ndarray, " grades"]
    texts: list[str] | None

    def __len__(self) -> int:
        return len(self.states)

    def of(
        self,
        state: Float32[np.ndarray, " encoder_dim"],
        embedding: Float32[np.ndarray, " encoder_dim"],
        row: int,
    ) -> list[TrainingInfluence]:
        """Return the queries that moved a document most for a query, the strongest first, at most five.

        Args:
            state: e_q.
            embedding: e_d.
            row: the document's.
        """
        effects = (self.states @ state).astype(np.float64) * (self.pulls @ embedding)
        total = float(np.abs(effects).sum())
        if not total:
            return []
        mine = self.rows == row
        judged = dict(zip(self.owners[mine].tolist(), self.grades[mine].tolist(), strict=True))
        texts = self.texts
        strongest: list[int] = np.argsort(-np.abs(effects), kind="stable")[:SHOWN].tolist()
        return [
            TrainingInfluence(
                query=None if texts is None else texts[at],
                grade=judged.get(at),
                share=float(effects[at]) / total,
            )
            for at in strongest
            if effects[at]
        ]

    def to_bytes(self) -> bytes:
        """As a file of a model's folder."""
        tensors = {
            "states": self.states,
            "pulls": self.pulls,
            "owners": self.owners,
            "rows": self.rows,
            "grades": self.grades,
        }
        return save(tensors, None if self.texts is None else {"texts": json.dumps(self.texts)})

    @classmethod
    def from_bytes(cls, content: bytes) -> TrainingInfluences:
        """Read the output of `to_bytes`.

        Raises:
            CorruptData: `content` is not such an output.
        """
        try:
            texts = metadata_of(content).get("texts")
            return cls(**load(content), texts=None if texts is None else json.loads(texts))
        except (SafetensorError, ValueError, TypeError, AttributeError) as error:
            raise CorruptData(f"{LESSONS_NAME} cannot be read ({error}); train again") from error
