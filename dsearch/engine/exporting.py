"""Documents out of a collection: as JSON lines, or as a BEIR folder; `dsearch index` reads both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson

from dsearch.corpus import write_beir
from dsearch.corpus.beir import record_of
from dsearch.store import Store
from dsearch.types import Document


def export_lines(store: Store, write: Callable[[bytes], object], filter: object = None) -> int:
    """Write every live document as a line of JSON, by id, of one state; their number.

    Args:
        store: whose documents.
        write: of the file that they go to.
        filter: only those that match; see the store's filters.py.

    Raises:
        InvalidRequest: not a filter.
    """
    count = 0
    for document in store.export(filter):
        write(orjson.dumps(record_of(document)) + b"\n")
        count += 1
    return count


def export_beir(store: Store, folder: Path, filter: object = None) -> int:
    """Write every live document into a BEIR folder, which gets no queries and no judgements; their number."""
    counted = _Counted(store.export(filter))
    write_beir(folder, counted, [], {})
    return counted.count


class _Counted:
    """Documents as they are, and how many there were."""

    def __init__(self, documents: Iterable[Document]):
        self._documents = documents
        self.count = 0

    def __iter__(self) -> Iterator[Document]:
        for document in self._documents:
            self.count += 1
            yield document
