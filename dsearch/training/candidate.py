"""Candidates: what a fit gave, judged by answers to held-out queries, as it is recorded and registered.

    fit → answers to held-out queries → gate → record → registry.py

A tuned search, a query memory, a head, a query encoder, both encoders, values of a field and a saved layer
are each a `JudgedCandidate`; a second stage and rows of feedback follow one. The record holds the gate's
report, so a candidate that another process fitted is registered by its files alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.attention.retrieval.second_stage import SecondStage
    from dsearch.encoder import EncoderChange
    from dsearch.engine import EncodedDocuments
    from dsearch.engine.models.training_record import LearnedQueries
    from dsearch.store import MemoryRow
    from dsearch.training.gate.gate import GateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Anything that the gate judged, by its record: the fit and the report as JSON, for the model's file."""

    record: dict[str, Any]

    @property
    def passed(self) -> bool:
        """True if it may go live."""
        return self.record["gate"]["verdict"] == "passed"

    @property
    def reason(self) -> str:
        """Reason of the verdict, in words."""
        return self.record["gate"]["reason"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Recorded):
    """A version to be.

    Attributes:
        head: its head; of learned values only W_V, W_O and b.
        encoder: change of the query encoder; None if it did not learn.
        documents: every document by it; None if they keep their embeddings.
        learned_from: queries that it learned from.
        tuned: the untrained search that training started from, if it is not the live one: a candidate of its
            own.
    """

    head: Head
    encoder: EncoderChange | None = None
    documents: EncodedDocuments | None = None
    learned_from: LearnedQueries | None = None
    tuned: Candidate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCandidate(Candidate):
    """A version to be, with the gate's report."""

    gate: GateReport

    def judged(self, gate: GateReport, **more: Any) -> Self:
        """The same with another report, and with more members of its record."""
        return replace(self, gate=gate, record={**self.record, **more, "gate": gate.to_dict()})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCandidate(Recorded):
    """A second stage, to follow a search."""

    stage: SecondStage


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCandidate(Recorded):
    """Rows of the query memory, to be written if they go live."""

    rows: list[MemoryRow]
