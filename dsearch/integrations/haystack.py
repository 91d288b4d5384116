"""Haystack: a collection as a document store, and a retriever component (extra haystack).

    store = DSearchDocumentStore("http://127.0.0.1:8080", "papers")     # or a folder: "index"
    pipeline.add_component("retriever", DSearchRetriever(store, top_k=5))

The collection embeds texts itself, by what its model has learned: embeddings of Haystack's documents are not
stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dsearch
from dsearch.errors import InvalidRequest, MissingExtra
from dsearch.integrations.stored import delete_documents, documents_of, every_document, write_documents
from dsearch.types import Document as Stored
from dsearch.types import Hit

if TYPE_CHECKING:
    from dsearch.client import Client, LocalEngine

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy
    from haystack.errors import FilterError
except ImportError as error:
    raise MissingExtra(
        "dsearch.integrations.haystack needs haystack-ai, which is not installed or not whole "
        f"({error}); run pip install 'dsearch[haystack]'"
    ) from error

_ORDERS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_LISTS = {"in": "in", "not in": "nin"}
_COMPARISONS = ("==", "!=", *_ORDERS, *_LISTS)
_LOGIC = ("AND", "OR", "NOT")


class DSearchDocumentStore:
    """A collection as a document store.

    Args:
        address: of a server, or the folder of a local home.
        collection: its name; it is created if it does not exist.
        engine: an open client or local engine, in place of the address; such a store has no dictionary.
    """

    def __init__(
        self,
        address: str | None = None,
        collection: str = "default",
        *,
        engine: Client | LocalEngine | None = None,
    ):
        if (address is None) == (engine is None):
            raise InvalidRequest("give an address or an engine, and not both")
        self.address, self.collection = address, collection
        if engine is None:
            assert address is not None
            remote = address.startswith(("http://", "https://"))
            engine = dsearch.Client(address) if remote else dsearch.open(address)
        self.engine = engine
        self.engine.create_collection(collection)

    def to_dict(self) -> dict[str, Any]:
        """Serialize: address and collection.

        Raises:
            InvalidRequest: the store was made of an open engine, which no dictionary holds.
        """
        if self.address is None:
            raise InvalidRequest("this store was made of an engine; give an address to serialize it")
        return default_to_dict(self, address=self.address, collection=self.collection)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DSearchDocumentStore:
        """Make a store of what `to_dict` gave."""
        return default_from_dict(cls, data)

    def count_documents(self) -> int:
        """Count the documents."""
        return self.engine.collection(self.collection).documents

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Documents that meet the filters, by id; all of them without filters.

        Raises:
            FilterError: filters that are malformed or cannot be asked for.
        """
        return [_document(item) for item in every_document(self.engine, self.collection, filter_of(filters))]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Store documents; they can be found on return. Policy NONE is FAIL.

        Raises:
            ValueError: not a list of documents, or one without text.
            DuplicateDocumentError: an id is there already, or given twice, and the policy is FAIL; none is
                written.
        """
        if not isinstance(documents, Iterable) or isinstance(documents, str):
            raise ValueError("documents must be a list of haystack.Document")
        batch = list(documents)
        if wrong := [item for item in batch if not isinstance(item, Document)]:
            raise ValueError(
                f"documents must be a list of haystack.Document; one is a {type(wrong[0]).__name__}"
            )
        if empty := next((item for item in batch if not item.content), None):
            raise ValueError(f"document {empty.id} has no text; only texts are stored")
        unique = {item.id: item for item in batch}  # of one id the last
        if policy != DuplicatePolicy.OVERWRITE:
            seen = {item.id for item in documents_of(self.engine, self.collection, list(unique))}
            unique = {}
            for item in batch:
                if item.id not in seen:
                    seen.add(item.id)
                    unique[item.id] = item
                elif policy != DuplicatePolicy.SKIP:
                    raise DuplicateDocumentError(
                        f"id {item.id!r} exists; use DuplicatePolicy.OVERWRITE or DuplicatePolicy.SKIP"
                    )
        stored = [Stored(item.id, item.content or "", metadata=item.meta) for item in unique.values()]
        write_documents(self.engine, self.collection, stored)
        return len(batch) if policy == DuplicatePolicy.OVERWRITE else len(stored)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents of these ids; missing ones are no error."""
        delete_documents(self.engine, self.collection, document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents; the collection stays."""
        self.delete_documents([item.id for item in every_document(self.engine, self.collection)])

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that meet the filters; returns how many.

        Raises:
            FilterError: as in `filter_documents`; no filters.
        """
        if (condition := filter_of(filters)) is None:
            raise FilterError("no filters; to delete every document, call delete_all_documents()")
        return self.engine.delete_many(self.collection, filter=condition).deleted

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set metadata of the documents that meet the filters; returns how many.

        Raises:
            FilterError: as in `filter_documents`.
        """
        ids = [item.id for item in every_document(self.engine, self.collection, filter_of(filters))]
        for id in ids:
            self.engine.update_metadata(self.collection, id, meta)
        return len(ids)

    def search(self, query: str, *, top_k: int = 10, **options: Any) -> list[Document]:
        """Documents that a query attends to most, with the scores that order them: higher is better.

        Args:
            query: text.
            top_k: number of documents.
            options: of a search; `filters` are Haystack's and narrow a `filter`, which is the engine's.
        """
        conditions = (options.pop("filter", None), filter_of(options.pop("filters", None)))
        if parts := [condition for condition in conditions if condition is not None]:
            options["filter"] = parts[0] if len(parts) == 1 else {"and": parts}
        result = self.engine.search(self.collection, query, limit=top_k, **options)
        return [_document(hit) for hit in result.hits]


@component
class DSearchRetriever:
    """Retriever component of a Haystack pipeline.

    Args:
        document_store: where to search.
        filters: in Haystack's form, unless a run gives its own.
        top_k: number of documents.
        options: further options of each search, such as {"mode": "dense"}; filters narrow a filter among
            them.
    """

    def __init__(
        self,
        document_store: DSearchDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        options: dict[str, Any] | None = None,
    ):
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.options = options or {}

    def to_dict(self) -> dict[str, Any]:
        """Serialize, with the store."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            options=self.options,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DSearchRetriever:
        """Make a retriever of what `to_dict` gave."""
        parameters = dict(data["init_parameters"])
        if isinstance(parameters["document_store"], dict):
            parameters["document_store"] = DSearchDocumentStore.from_dict(parameters["document_store"])
        return default_from_dict(cls, {**data, "init_parameters": parameters})

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Find documents, best first.

        Args:
            query: text.
            filters: in place of the retriever's own.
            top_k: likewise.
        """
        chosen = self.filters if filters is None else filters
        size = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search(query, top_k=size, filters=chosen, **self.options)}


def filter_of(filters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Translate Haystack's filters; None for none.

    Raises:
        FilterError: they are malformed, or an operator or value that cannot be asked for.
    """
    if not filters:
        return None
    if "field" in filters or filters.get("operator") in _COMPARISONS:
        return _comparison(filters)
    operator, conditions = filters.get("operator"), filters.get("conditions")
    if operator not in _LOGIC:
        raise FilterError(f"operator={operator!r}; use {', '.join((*_COMPARISONS, *_LOGIC))}")
    if not isinstance(conditions, list):
        raise FilterError(f"{operator} without conditions; give a list of filters")
    parts = [filter_of(item) or {"and": []} for item in conditions]
    if operator == "OR":
        return {"or": parts}
    return {"and": parts} if operator == "AND" else {"not": {"and": parts}}


def _comparison(filters: dict[str, Any]) -> dict[str, Any]:
    for name in ("field", "operator", "value"):
        if name not in filters:
            raise FilterError(f"a comparison without {name}; give field, operator and value")
    operator, value = filters["operator"], filters["value"]
    field = str(filters["field"]).removeprefix("meta.")
    field = f"\\{field}" if field in ("and", "or", "not") else field
    if operator in ("==", "!="):
        if isinstance(value, list | dict):
            raise FilterError(
                f"{field} {operator} a {type(value).__name__}; use a text, a number or a boolean"
            )
        equal = _equal(field, value)
        return equal if operator == "==" else {"not": equal}
    if operator in _LISTS:
        if not isinstance(value, list):
            raise FilterError(f"{field} {operator} a {type(value).__name__}; use a list")
        among = {"or": [_equal(field, item) for item in value]} if value else {field: {"in": []}}
        return among if operator == "in" else {"not": among}
    if operator not in _ORDERS:
        raise FilterError(f"operator={operator!r}; use {', '.join(_COMPARISONS)}")
    if value is None:
        return {field: {"in": []}}
    if isinstance(value, bool | list | dict) or (isinstance(value, str) and not _is_moment(value)):
        raise FilterError(f"{field} {operator} {value!r}; use a number or a time such as 2026-01-31T12:00:00")
    return {field: {_ORDERS[operator]: value}}  # times of one form are in the order of their characters


def _equal(field: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"or": [{field: {"exists": False}}, {field: {"eq": None}}]}
    return {field: {"eq": value}}


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _document(item: Hit | Stored) -> Document:
    meta = {"title": item.title, **item.metadata} if item.title else dict(item.metadata)
    score = item.score if isinstance(item, Hit) else None
    return Document(id=item.id, content=item.text, meta=meta, score=score)
