"""Values that a version learned for a field: v = W_O W_V e + b of every document, in place of stored ones.

The version's record names the field (`readout`). Since the weights of a query sum to 1, the pooled values are
the output projection of its context. Labels are the softmax of the pooled values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int64

from dsearch.attention.retrieval.head import Head
from dsearch.engine.models.values import READOUT
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.engine.state.state import CollectionState
from dsearch.results import FieldPrediction
from dsearch.types import Stamp

_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class LearnedValues:
    """The learned values of a field.

    Attributes:
        head: head of the version.
        kind: number, vector or label.
        labels: of the numbers of a value, where it is a label.
    """

    head: Head
    kind: str
    labels: Sequence[str | bool]

    @classmethod
    def of(cls, collection: CollectionState, stamp: Stamp, head: Head, field: str) -> LearnedValues | None:
        """Return the learned values of a field; None if the version learned none for it."""
        record = {} if stamp.model == "v0" else collection.store.model(stamp.model).record
        readout: Mapping[str, Any] = record.get(READOUT) or {}
        if head.output is None or readout.get("field") != field:
            return None
        return cls(head, readout["kind"], readout.get("labels") or ())

    def at(self, snapshot: Snapshot, positions: Int64[np.ndarray, " some"]) -> list[Any]:
        """Return the values of documents, as `PooledField` and candidates take them; None at −1."""
        rows: list[Any] = []
        for start in range(0, len(positions), _AT_A_TIME):
            part = positions[start : start + _AT_A_TIME]
            embeddings = torch.as_tensor(snapshot.embeddings(part)).to(self.head.key_delta)
            values = self.head.outputs(self.head.values(embeddings))
            if self.kind == "number":
                values = values.squeeze(-1)
            numbers = cast("list[Any]", values.tolist())  # pyright: ignore[reportUnknownMemberType]
            rows += [None if at == NONE else row for row, at in zip(numbers, part, strict=True)]
        return rows

    def marked(self, prediction: FieldPrediction) -> FieldPrediction:
        """Mark a prediction as of learned values, and turn the numbers of labels into shares."""
        if self.kind != "label" or not isinstance(prediction.mean, list):
            return replace(prediction, values="learned", without_field=0)
        weights = np.exp(np.array(prediction.mean) - max(prediction.mean))
        shares: list[float] = (weights / weights.sum()).tolist()
        order = np.argsort(-weights, kind="stable").tolist()
        evidence = [replace(row, value=self.labels[int(np.argmax(row.value))]) for row in prediction.evidence]
        return replace(
            prediction,
            kind="label",
            mean=None,
            spread=None,
            labels={self.labels[at]: shares[at] for at in order},
            evidence=evidence,
            without_field=0,
            values="learned",
        )
