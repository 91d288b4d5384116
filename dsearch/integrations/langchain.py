"""LangChain: a collection as a vector store and as a retriever (extra langchain).

    engine = dsearch.Client("http://127.0.0.1:8080")     # or dsearch.open("index")
    store = DSearchVectorStore(engine, "papers")
    retriever = DSearchRetriever(engine=engine, collection="papers", k=5)

The collection embeds texts itself, by what its model has learned: an embedding of LangChain's has no part.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dsearch.errors import InvalidRequest, MissingExtra, amount
from dsearch.integrations.stored import delete_documents, documents_of, write_documents
from dsearch.types import Document as Stored
from dsearch.types import Hit

if TYPE_CHECKING:
    from dsearch.client import Client, LocalEngine

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
except ImportError as error:
    raise MissingExtra(
        f"dsearch.integrations.langchain needs langchain-core, which is not installed or not whole ({error})"
        "; run pip install 'dsearch[langchain]'"
    ) from error

DEFAULT_K = 4  # as in LangChain


class DSearchVectorStore(VectorStore):
    """A collection as a vector store.

    A document's page_content is its text; a title stands in its metadata under "title". Options of a search
    (filter, mode, model, …) are keyword arguments of the search methods.

    Args:
        engine: a client of a server, or a local engine.
        collection: name of a collection that exists.
    """

    def __init__(self, engine: Client | LocalEngine, collection: str):
        self.engine, self.collection = engine, collection

    @property
    def embeddings(self) -> Embeddings | None:
        """None: the collection embeds by its own model."""
        return None

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Store texts, or replace those of the same ids; they can be found on return.

        Raises:
            InvalidRequest: not one metadata or id a text, or a document that cannot be stored.
        """
        contents = list(texts)
        for name, values in {"metadatas": metadatas, "ids": ids}.items():
            if values is not None and len(values) != len(contents):
                raise InvalidRequest(
                    f"{len(values)} {name} for {amount(len(contents), 'text')}; give one each"
                )
        names = [id or str(uuid.uuid4()) for id in ids or [""] * len(contents)]
        stored = [
            Stored(name, text, metadata=metadata)
            for name, text, metadata in zip(names, contents, metadatas or [{}] * len(contents), strict=True)
        ]
        write_documents(self.engine, self.collection, stored)
        return names

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Store documents, by their ids where they have some; see `add_texts`."""
        ids = kwargs.pop("ids", None) or [document.id or "" for document in documents]
        texts = [document.page_content for document in documents]
        return self.add_texts(texts, [document.metadata for document in documents], ids=ids, **kwargs)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete the documents of these ids, or those that match `filter`; missing ones are no error."""
        filter = kwargs.get("filter")
        if ids is not None and filter is None:
            delete_documents(self.engine, self.collection, ids)
        else:
            self.engine.delete_many(self.collection, ids=ids, filter=filter)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents of these ids, without those that are missing."""
        return [_document(stored) for stored in documents_of(self.engine, self.collection, ids)]

    def similarity_search(self, query: str, k: int = DEFAULT_K, **kwargs: Any) -> list[Document]:
        """Documents that the query attends to most.

        Args:
            query: text.
            k: number of documents.
            kwargs: options of a search.
        """
        return [_document(hit) for hit in self._hits(query, k, kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = DEFAULT_K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """`similarity_search`, with the score that orders the documents: higher is better, without bounds."""
        return [(_document(hit), hit.score) for hit in self._hits(query, k, kwargs)]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = DEFAULT_K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """With the share of the attention, from 0 to 1."""
        return [(_document(hit), hit.weight) for hit in self._hits(query, k, kwargs)]

    def _hits(self, query: str, k: int, options: dict[str, Any]) -> list[Hit]:
        return self.engine.search(self.collection, query, limit=k, **options).hits

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        engine: Client | LocalEngine | None = None,
        collection: str = "default",
        **kwargs: Any,
    ) -> DSearchVectorStore:
        """Store texts in a collection, which is created if it does not exist.

        Args:
            texts: of the documents.
            embedding: not used: the collection embeds by its own model.
            metadatas: one a text.
            ids: one a text; random ones when None.
            engine: required.
            collection: its name.
            kwargs: none.

        Raises:
            InvalidRequest: no engine.
        """
        if engine is None:
            raise InvalidRequest("engine is missing; give engine=dsearch.Client(URL) or dsearch.open(FOLDER)")
        engine.create_collection(collection)
        store = cls(engine, collection)
        store.add_texts(texts, metadatas, ids=ids)
        return store


class DSearchRetriever(BaseRetriever):
    """A collection as a retriever.

    Attributes:
        engine: a client of a server, or a local engine.
        collection: name of a collection.
        k: number of documents.
        options: further options of each search, such as {"filter": {"year": {"gte": 2017}}}; a call's own
            take the place of those of the same name, as in LangChain's search_kwargs.
    """

    engine: Any
    collection: str
    k: int = DEFAULT_K
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **kwargs: Any
    ) -> list[Document]:
        options = {**self.options, **kwargs}
        result = self.engine.search(self.collection, query, limit=self.k if k is None else k, **options)
        return [_document(hit) for hit in result.hits]


def _document(item: Hit | Stored) -> Document:
    metadata = {"title": item.title, **item.metadata} if item.title else dict(item.metadata)
    return Document(id=item.id, page_content=item.text, metadata=metadata)
