"""A BEIR folder as the commands need it: judged queries of a split, and what was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsearch.corpus import BeirFolder, Problems
from dsearch.evaluation import Pairs, Qrels, read_pairs, read_qrels
from dsearch.types import Query


@dataclass(frozen=True, slots=True)
class Judgements:
    """Queries with judgements.

    Attributes:
        queries: those that are judged in this split.
        qrels: of this split.
        training: the judgements of split "train" when this is another one and there is one, else None.
        exclude: pairs that are left out of rankings and scores.
    """

    queries: list[Query]
    qrels: Qrels
    training: Qrels | None
    exclude: Pairs


def read_judgements(data: Path, split: str, exclude: Path | None = None) -> Judgements:
    """Read a split.

    Raises:
        InvalidSource: a file is missing or malformed; file and line are named.
    """
    folder = BeirFolder(data)
    qrels = read_qrels(folder.qrels_path(split))
    has_training = split != "train" and "train" in folder.splits()
    return Judgements(
        queries=[query for query in folder.queries(Problems()) if query.id in qrels],
        qrels=qrels,
        training=read_qrels(folder.qrels_path("train")) if has_training else None,
        exclude=read_pairs(exclude) if exclude else {},
    )
