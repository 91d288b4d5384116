"""`Lessons`: the queries that a head was trained on, each with the direction in which it pulled.

With the bilinear score s(q, d) = e_q · M e_d the gradient of a listwise loss of training query i, at the head
that training started from, is

    −t ∂L_i/∂M = e_i ⊗ r_i        r_i = w_i Σ_d (p_i(d) − a_i(d)) e_d

p_i: the grades, as shares; a_i: the attention before training; w_i: how much the query counts. A step along
it moves the score of any other query and document by (e_q · e_i) (r_i · e_d), up to one factor that is the
same for all. That is TracIn with the start as its only checkpoint (Pruthi et al., NeurIPS 2020, section 3),
and to keep e_i and r_i is all that it takes: two rows a query, whatever becomes of the documents.

What it leaves out: later steps, retention and decay, and what the keyword weight, the temperature and the hop
learned. So it tells who pulled, which way, and how hard beside the others; the amounts do not sum to the
change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dsearch.errors import CorruptData
from dsearch.types import Lesson

LESSONS_NAME = "lessons.safetensors"
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a head was taught.

    Attributes:
        states: e_i.
        pulls: r_i.
        owners: the query of each grade.
        rows: the document of each grade, in the store.
        grades: above 0.
        texts: of the queries; None where their words are not to be kept: of clicks, and of the corpus' own.
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
    ) -> list[Lesson]:
        """Those that moved a document most for a query, the strongest first, at most five.

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
            Lesson(
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
    def from_bytes(cls, content: bytes) -> Lessons:
        """What `to_bytes` wrote.

        Raises:
            CorruptData: it did not.
        """
        try:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            texts = header.get("__metadata__", {}).get("texts")
            return cls(**load(content), texts=None if texts is None else json.loads(texts))
        except (SafetensorError, ValueError, TypeError, AttributeError) as error:
            raise CorruptData(f"{LESSONS_NAME} cannot be read ({error}); train again") from error
