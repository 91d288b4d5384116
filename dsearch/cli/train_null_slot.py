"""`dsearch train --null-slot`: judged queries that nothing answers teach the weight of "nothing fits"."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsearch.cli.runs import interruptible
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import Examples, NullSlot, Trained, TrainingOptions


def require_judged(option: str, data: Path | None, source: str | None, scope: str) -> None:
    """Refuse a slot, or an overlay, without judgements to learn it from.

    Raises:
        InvalidRequest: no --data, or another scope.
    """
    if data is None or source is not None or scope != "head":
        raise InvalidRequest(
            f"{option} learns from judged queries, in scope head; give --data BEIR_FOLDER (a query whose "
            "grades are all 0 is one that nothing answers)"
        )


def learned_null_slot(
    collection: Collection,
    data: Path,
    split: str,
    trained: Trained,
    examples: Examples,
    training: TrainingOptions,
    device: str,
) -> tuple[Trained, NullSlot]:
    """What was trained, with a slot where that says anything."""
    from dsearch.corpus import BeirFolder, Problems
    from dsearch.evaluation import read_qrels
    from dsearch.training import unanswerable_queries, with_null_slot

    folder = BeirFolder(data)
    queries = {query.id: query.text for query in folder.queries(Problems())}
    unanswerable = list(unanswerable_queries(queries, read_qrels(folder.qrels_path(split))).values())
    with interruptible() as cancelled:
        return with_null_slot(
            trained,
            examples,
            training,
            unanswerable,
            collection.encoder,
            device=device,
            cancelled=cancelled,
        )
