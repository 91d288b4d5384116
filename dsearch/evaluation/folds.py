"""Cross-validation folds: assign each query of a collection without official split to a fold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from dsearch.errors import InvalidSource
from dsearch.evaluation.qrels import Qrels


class Fold(NamedTuple):
    """One turn of cross-validation: trained on the other folds' judgements, tested on this one's."""

    number: int
    train: Qrels
    test: Qrels


def read_folds(path: str | PathLike[str]) -> dict[str, int]:
    """Query id → fold, from `{"folds": {"q1": 0, …}}` or the bare mapping.

    Raises:
        InvalidSource: not readable, not JSON, or not such a mapping to whole numbers from 0.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSource(f"{path}: no file of folds there that can be read ({error.strerror})") from error
    except ValueError as error:
        raise InvalidSource(f"{path}: not JSON in UTF-8 ({error})") from error
    folds = content.get("folds", content) if isinstance(content, dict) else None
    if not isinstance(folds, dict) or not folds:
        raise InvalidSource(f'{path}: folds are {{"query id": fold, …}}, bare or under the key "folds"')
    for query, fold in folds.items():
        if not isinstance(fold, int) or isinstance(fold, bool) or fold < 0:
            raise InvalidSource(f"{path}: fold {fold!r} of query {query!r} is not a whole number from 0")
    return folds


def cross_validation(qrels: Mapping[str, Mapping[str, float]], folds: Mapping[str, int]) -> Iterator[Fold]:
    """Yield each fold, ascending; together their tests contain every judged query once.

    Raises:
        InvalidSource: a judged query is in no fold, or all are in the same.
    """
    homeless = [query for query in qrels if query not in folds]
    if homeless:
        raise InvalidSource(
            f"{len(homeless)} of {len(qrels)} judged queries are in no fold, such as {homeless[0]!r}; "
            "the file of folds must name every judged query"
        )
    numbers = sorted({folds[query] for query in qrels})
    if len(numbers) < 2:
        raise InvalidSource(
            f"one fold has every judged query ({len(qrels)}); cross-validation needs two or more"
        )
    for number in numbers:
        parts: tuple[Qrels, Qrels] = ({}, {})
        for query, judged in qrels.items():
            parts[folds[query] == number][query] = dict(judged)
        yield Fold(number, train=parts[0], test=parts[1])
