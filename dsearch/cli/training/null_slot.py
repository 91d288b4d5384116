"""`dsearch train --null-slot`: judged queries that nothing answers teach the weight of "nothing fits"."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsearch.cli.training.session import interruptible

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import Examples, NullSlot, Trained, TrainingOptions


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
