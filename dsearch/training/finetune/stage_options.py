"""Options of a training that concern its second stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.monotone import MonotoneField, parse_fields
from dsearch.encoder.reranker import load_reranker
from dsearch.engine import Collection, Snapshot
from dsearch.engine.state.reranked import identity_of
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob


def check_stage_options(job: TrainingJob, collection: Collection) -> None:
    """Refuse a job whose options of a second stage would have no effect.

    Raises:
        InvalidRequest: no judged queries in scope head, or no tokens; fields that do not order documents; a
            reranker that is none.
        RerankerUnavailable, MissingExtra: it cannot be loaded.
    """
    chosen = {
        "token_matrix": job.token_matrix,
        "monotone_fields": job.monotone_fields,
        "reranker": job.reranker,
    }
    names = [name for name, value in chosen.items() if value]
    if job.stage_loss and (
        job.scope not in ("query", "full") or job.judgements is None or collection.snapshot.tokens is None
    ):
        raise InvalidRequest(
            "stage_loss: for judged queries, in scope query or full, in a collection with tokens; leave it "
            "out, or add them: dsearch index -c COLLECTION --second-stage"
        )
    if not names:
        return
    judged_head = job.scope == "head" and job.source is None and job.judgements is not None
    snapshot = collection.snapshot
    if not judged_head or snapshot.tokens is None:
        raise InvalidRequest(
            f"{' and '.join(names)}: for judged queries, in scope head, in a collection with tokens; leave "
            "it out, or add them: dsearch index -c COLLECTION --second-stage"
        )
    scaled_fields(job.monotone_fields, snapshot)
    reranker_of(job.reranker)


class StageFeatures(TypedDict):
    """Arguments of `train_second_stage` beside the examples."""

    matrix: bool
    fields: Sequence[MonotoneField]
    reranker: RerankerIdentity | None


def stage_features(job: TrainingJob, snapshot: Snapshot) -> StageFeatures:
    """Features of a job's second stage, for the documents of a state; raises as `check_stage_options`."""
    fields = scaled_fields(job.monotone_fields, snapshot)
    return StageFeatures(matrix=job.token_matrix, fields=fields, reranker=reranker_of(job.reranker))


def reranker_of(name: str | None) -> RerankerIdentity | None:
    """Load the named reranker, from the hub if need be, and name its files; None without a name.

    Raises:
        InvalidRequest, RerankerUnavailable, MissingExtra: as `load_reranker`.
    """
    return None if name is None else identity_of(load_reranker(name, fetch=True))


def scaled_fields(text: str | None, snapshot: Snapshot) -> tuple[MonotoneField, ...]:
    """The named fields, on the scale of a state's documents.

    Raises:
        InvalidRequest: not a list of fields, or one that does not order documents.
    """
    if text is None:
        return ()
    read = snapshot.fields
    assert read is not None
    rows = snapshot.rows(snapshot.visible())
    return tuple(field.scaled(read(rows, field.name)) for field in parse_fields(text))
