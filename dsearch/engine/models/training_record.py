"""Records of the queries that a model was trained on: `QueryDrift` and `LearnedQueries`.

`QueryDrift` measures how far recent queries lie from the training queries. When people begin to ask about
another topic nothing fails; answers only stop gaining from training. The distance between the two means shows
it:

    drift = max(0, ‖m − μ‖² − noise) / σ²          noise = s² Σw² / (Σw)² + σ² / n

with mean m and variance s² (the trace of the covariance) of recent queries, weighted by w, and mean μ
and variance σ² of the n training queries. It is the maximum mean discrepancy of a linear kernel, squared and
unbiased (Gretton et al. 2012, "A Kernel Two-Sample Test", lemma 6), in units of the training queries'
variance: 0 if both come from one source, 1 if the means lie as far apart as a training query from its own
mean. Differences that leave the mean unchanged are not detected.

`LearnedQueries` names the queries themselves, so that an evaluation can tell those that a version learned
from apart from others.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Float32
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dsearch.engine.models.tensors import metadata_of
from dsearch.errors import CorruptData

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


LEARNED_NAME = "lessons.safetensors"


@dataclass(frozen=True, slots=True)
class LearnedQueries:
    """Queries that a version learned from: their texts, or the embeddings of those whose texts are not kept.

    Attributes:
        texts: texts; None if they must not be stored: those of clicks, and of the corpus itself.
        states: embeddings; None where there are texts.
    """

    texts: list[str] | None
    states: Float32[np.ndarray, "queries encoder_dim"] | None = None

    def to_bytes(self) -> bytes:
        """As a file of a model's folder."""
        if self.texts is not None:
            return save({}, {"texts": json.dumps(self.texts)})
        assert self.states is not None
        return save({"states": self.states})

    @classmethod
    def from_bytes(cls, content: bytes) -> LearnedQueries:
        """Read the output of `to_bytes`; what else earlier releases stored there is left out.

        Raises:
            CorruptData: `content` is not such an output.
        """
        try:
            texts = metadata_of(content).get("texts")
            if texts is not None:
                return cls(json.loads(texts))
            return cls(None, load(content)["states"])
        except (SafetensorError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise CorruptData(f"{LEARNED_NAME} cannot be read ({error}); train again") from error
