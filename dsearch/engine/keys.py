"""`KeyOptions`: how a collection keeps the keys of its generations, and where that is remembered.

A generation's record in the store says what it was built with, so the next one is built alike until something
else is asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dsearch.errors import InvalidRequest
from dsearch.index import DENSE_KINDS
from dsearch.index.dense_kinds import AUTO
from dsearch.index.tuning import RECALL_TARGET
from dsearch.store import Store


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """How keys are kept.

    Args:
        kind: a name in `DENSE_KINDS`; "auto" takes the fastest that fits and reaches the target.
        recall_target: the recall@10 that an approximate kind's parameters are sought for.
        memory_bytes: what the keys may take when "auto" chooses; None for no bound.

    Raises:
        InvalidRequest: an unknown kind, a target outside 0 to 1, a bound below 1.
    """

    kind: str = "Flat"
    recall_target: float = RECALL_TARGET
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind != AUTO and self.kind not in DENSE_KINDS:
            raise InvalidRequest(f"dense kind {self.kind!r}; use one of {', '.join([*DENSE_KINDS, AUTO])}")
        if not 0 < self.recall_target <= 1:
            raise InvalidRequest(f"recall target {self.recall_target}; use a number above 0, up to 1")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise InvalidRequest(f"memory_bytes={self.memory_bytes}; use 1 or more, or none for no bound")

    @property
    def approximate(self) -> bool:
        """Whether the kind, or one that "auto" may take, can overlook a neighbour."""
        return self.kind == AUTO or bool(DENSE_KINDS[self.kind].parameters)

    def changed(self, kind: str | None, recall_target: float | None, memory_bytes: int | None) -> KeyOptions:
        """These, with what is given in place of what was; None leaves a setting as it is."""
        given = {"kind": kind, "recall_target": recall_target, "memory_bytes": memory_bytes}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of(cls, store: Store) -> KeyOptions:
        """What the live generation was built with; the defaults before the first and for older ones."""
        live = store.live_generation()
        kept: dict[str, Any] = {} if live is None else live.record.get("keys", {})
        return cls(**kept)
