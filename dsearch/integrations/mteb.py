"""MTEB 2: a collection's ranking as a search model of its retrieval tasks (extra mteb).

    with dsearch.open("index") as engine:
        mteb.evaluate(DSearchModel(engine), tasks=mteb.get_tasks(["NFCorpus"]))

Each task's corpus becomes a collection, and what ranks it is what `dsearch evaluate` ranks.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from dsearch.errors import InvalidRequest, MissingExtra
from dsearch.integrations.stored import write_documents
from dsearch.search_options import MAX_LIMIT
from dsearch.types import Document
from dsearch.version import __version__

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata

    from dsearch.client import Client, LocalEngine

try:
    from mteb.models.model_meta import ModelMeta
except ImportError as error:
    raise MissingExtra(
        f"dsearch.integrations.mteb needs mteb 2, which is not installed or not whole ({error}); "
        "run pip install 'dsearch[mteb]'"
    ) from error

_QUERIES_AT_A_TIME = 32
_BATCH_DOCUMENTS = 1000
_LONGEST_NAME, _DIGEST = 64, 8  # characters


class DSearchModel:
    """A search model (MTEB's `SearchProtocol`): the ranking of a collection.

    Args:
        engine: a client of a server, or a local engine; each task adds a collection to it.
        name: first part of the collections' names.
        options: options of each search, such as {"mode": "dense"} or {"candidates": 1000}.
    """

    def __init__(
        self, engine: Client | LocalEngine, *, name: str = "mteb", options: dict[str, Any] | None = None
    ):
        self._engine, self._name, self._options = engine, name, options or {}
        self.collection = ""

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Description for the results: the release of dsearch."""
        return ModelMeta.create_empty({"name": f"dsearch/{self._name}", "revision": __version__})

    def index(
        self, corpus: Any, *, task_metadata: TaskMetadata, hf_split: str, hf_subset: str, **_: Any
    ) -> None:
        """Store a task's documents in a collection of their own; documents of an earlier run stay.

        Args:
            corpus: rows with id, text and, if there is one, title.
            task_metadata: names the collection, with split and subset.
            hf_split: of the task.
            hf_subset: of the task.
        """
        parts = (self._name, task_metadata.name, hf_subset, hf_split)
        self.collection = _collection_name("-".join(parts).lower())
        self._engine.create_collection(self.collection)
        batch: list[Document] = []
        for row in corpus:
            batch.append(Document(str(row["id"]), row["text"], title=row.get("title") or ""))
            if len(batch) == _BATCH_DOCUMENTS:
                write_documents(self._engine, self.collection, batch)
                batch = []
        write_documents(self._engine, self.collection, batch)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Rank the documents for every query: query id → document id → score.

        Args:
            queries: rows with id and text.
            top_k: number of documents, of which at most 1000 come.
            top_ranked: for reranking tasks, which are not supported.

        Raises:
            InvalidRequest: a reranking task.
        """
        if top_ranked:
            raise InvalidRequest("reranking tasks are not supported; use retrieval tasks")
        rows = [(str(row["id"]), row["text"]) for row in queries]
        options: dict[str, Any] = {"limit": min(top_k, MAX_LIMIT), "operators": False, **self._options}
        ranked: dict[str, dict[str, float]] = {}
        for start in range(0, len(rows), _QUERIES_AT_A_TIME):
            block = rows[start : start + _QUERIES_AT_A_TIME]
            results = self._engine.search_batch(self.collection, [text for _, text in block], **options)
            for (id, _text), result in zip(block, results, strict=True):
                ranked[id] = {hit.id: hit.score for hit in result.hits}
        return ranked


def _collection_name(task: str) -> str:
    """The task as the name of a collection; a long one ends with its digest, or two splits would share it."""
    name = re.sub(r"[^a-z0-9-]+", "-", task).strip("-")
    if len(name) <= _LONGEST_NAME:
        return name
    digest = sha256(task.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST_NAME - _DIGEST - 1]}-{digest}"
