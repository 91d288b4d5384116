"""LlamaIndex: a collection as a vector store and as a retriever (extra llama-index).

    engine = dsearch.Client("http://127.0.0.1:8080")     # or dsearch.open("index")
    store = DSearchVectorStore(engine=engine, collection="papers")
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(1))
    retriever = DSearchRetriever(engine, "papers", k=5)

The collection embeds texts itself, by what its model has learned: embeddings of nodes have no part, so the
embedding model of an index over the store may be a mock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsearch.errors import InvalidRequest, MissingExtra
from dsearch.integrations.stored import (
    delete_documents,
    documents_of,
    every_document,
    literal_field,
    write_documents,
)
from dsearch.types import Document as Stored
from dsearch.types import Hit, Mode

if TYPE_CHECKING:
    from dsearch.client import Client, LocalEngine

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.bridge.pydantic import Field
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
except ImportError as error:
    raise MissingExtra(
        "dsearch.integrations.llama_index needs llama-index-core, which is not installed or not whole "
        f"({error}); run pip install 'dsearch[llama-index]'"
    ) from error

DEFAULT_K = 4
DEFAULT_MMR_THRESHOLD = 0.5  # as in LlamaIndex
_NODE = "_node_content"
_NOT_ITS_OWN = (_NODE, "_node_type", "document_id", "doc_id", "ref_doc_id")  # LlamaIndex adds them
_MODES: dict[VectorStoreQueryMode, Mode] = {
    VectorStoreQueryMode.DEFAULT: "hybrid",
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
    VectorStoreQueryMode.SPARSE: "keyword",
    VectorStoreQueryMode.TEXT_SEARCH: "keyword",
    VectorStoreQueryMode.MMR: "hybrid",
}
_OPERATORS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "nin",
    FilterOperator.ANY: "in",  # a list of the metadata meets a condition if one of its elements does
    FilterOperator.CONTAINS: "eq",
}


class DSearchVectorStore(BasePydanticVectorStore):
    """A collection as a vector store of nodes.

    The metadata of a node are those of its document, so filters of either side find it; the rest of the node
    is kept beside them. Documents that others have stored come as text nodes.

    Attributes:
        engine: a client of a server, or a local engine.
        collection: name of a collection that exists.
        options: further options of each search, such as {"model": "v3"}; filters of a query narrow a filter
            among them.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    engine: Any = Field(exclude=True)
    collection: str
    options: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def class_name(cls) -> str:
        """Name by which LlamaIndex serializes it."""
        return "DSearchVectorStore"

    @property
    def client(self) -> Any:
        """The engine."""
        return self.engine

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Store nodes, or replace those of the same ids; they can be found on return.

        Raises:
            InvalidRequest: a node that cannot be stored; the others are.
        """
        documents = [
            Stored(
                node.node_id,
                node.get_content(metadata_mode=MetadataMode.NONE),
                metadata=node_to_metadata_dict(node, remove_text=True),
            )
            for node in nodes
        ]
        write_documents(self.engine, self.collection, documents)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a source document; none is no error."""
        self.engine.delete_many(self.collection, filter={"ref_doc_id": {"eq": ref_doc_id}})

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes of these ids that meet the filters; missing ones are no error.

        Raises:
            InvalidRequest: neither ids nor filters.
        """
        if node_ids is None and filters is None:
            raise InvalidRequest("neither node_ids nor filters; give one, or call clear()")
        if node_ids is not None and filters is not None:
            node_ids = [node.node_id for node in self.get_nodes(node_ids, filters)]
        if node_ids is not None:
            delete_documents(self.engine, self.collection, node_ids)
            return
        self.engine.delete_many(self.collection, filter=filter_of(filters))

    def clear(self) -> None:
        """Delete all nodes; the collection stays."""
        ids = [document.id for document in every_document(self.engine, self.collection)]
        delete_documents(self.engine, self.collection, ids)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Nodes of these ids that meet the filters, without those that are missing."""
        condition = filter_of(filters)
        if node_ids is None:
            return [_node(document) for document in every_document(self.engine, self.collection, condition)]
        documents = list(documents_of(self.engine, self.collection, node_ids))
        if condition is not None:
            meeting = {document.id for document in every_document(self.engine, self.collection, condition)}
            documents = [document for document in documents if document.id in meeting]
        return [_node(document) for document in documents]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Nodes that a query attends to most, with the scores that order them: higher is better.

        Raises:
            InvalidRequest: a query without words, of single nodes, or of a mode that there is none of.
        """
        if not query.query_str:
            raise InvalidRequest(
                "the query has no text, and an embedding of another encoder means nothing here; "
                "give query_str"
            )
        if query.node_ids:
            raise InvalidRequest("node_ids restrict no search here; use filters or doc_ids")
        options: dict[str, Any] = {**self.options, **_mode(query), **kwargs}
        of_query = (filter_of(query.filters), _of_sources(query.doc_ids))
        conditions = [item for item in (options.pop("filter", None), *of_query) if item]
        if query.mode == VectorStoreQueryMode.MMR:
            relevance = DEFAULT_MMR_THRESHOLD if query.mmr_threshold is None else query.mmr_threshold
            options = {"diversity": 1 - relevance, **options}
        if conditions:
            options["filter"] = {"and": conditions}
        result = self.engine.search(self.collection, query.query_str, limit=query.similarity_top_k, **options)
        hits: list[Hit] = result.hits
        return VectorStoreQueryResult(
            nodes=[_node(hit) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )


class DSearchRetriever(BaseRetriever):
    """A collection as a retriever of nodes.

    Args:
        engine: a client of a server, or a local engine.
        collection: name of a collection.
        k: number of nodes.
        options: further options of each search, such as {"filter": {"year": {"gte": 2017}}}.
        callback_manager: of LlamaIndex.
    """

    def __init__(
        self,
        engine: Client | LocalEngine,
        collection: str,
        *,
        k: int = DEFAULT_K,
        options: dict[str, Any] | None = None,
        callback_manager: CallbackManager | None = None,
    ):
        self._engine, self._collection, self._k, self._options = engine, collection, k, options or {}
        super().__init__(callback_manager=callback_manager)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        result = self._engine.search(self._collection, query_bundle.query_str, limit=self._k, **self._options)
        return [NodeWithScore(node=_node(hit), score=hit.score) for hit in result.hits]


def filter_of(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """Translate LlamaIndex's filters; None for none.

    Raises:
        InvalidRequest: an operator that there is none of.
    """
    if filters is None or not filters.filters:
        return None
    parts = [
        filter_of(item) or {"and": []} if isinstance(item, MetadataFilters) else _condition(item)
        for item in filters.filters
    ]
    if filters.condition == FilterCondition.OR:
        return {"or": parts}
    if filters.condition == FilterCondition.NOT:
        return {"not": {"or": parts}}  # met by none of them
    return {"and": parts}


def _condition(item: MetadataFilter) -> dict[str, Any]:
    field = literal_field(item.key)
    if item.operator == FilterOperator.IS_EMPTY:
        return {"or": [{field: {"exists": False}}, {field: {"in": [None, ""]}}]}
    if item.operator == FilterOperator.ALL and isinstance(item.value, list):
        return {"and": [{field: {"eq": value}} for value in item.value]}
    operator = _OPERATORS.get(item.operator)
    if operator is None:
        allowed = ", ".join(each.value for each in (*_OPERATORS, FilterOperator.ALL, FilterOperator.IS_EMPTY))
        raise InvalidRequest(f"filter operator {item.operator.value!r}; use {allowed}")
    return {field: {operator: item.value}}


def _of_sources(ids: list[str] | None) -> dict[str, Any] | None:
    return {"ref_doc_id": {"in": list(ids)}} if ids else None


def _mode(query: VectorStoreQuery) -> dict[str, Mode]:
    """The legs of a query, as an option; none in the default mode, in which the store's option counts.

    `alpha` leaves one out at its ends: what lies between, the model has learned.
    """
    mode = _MODES.get(query.mode)
    if mode is None:
        allowed = ", ".join(each.value for each in _MODES)
        raise InvalidRequest(f"query mode {query.mode.value!r}; use {allowed}")
    if mode == "hybrid" and query.alpha is not None:
        ends: dict[float, Mode] = {0.0: "keyword", 1.0: "dense"}
        return {"mode": ends.get(float(query.alpha), mode)}
    return {} if query.mode == VectorStoreQueryMode.DEFAULT else {"mode": mode}


def _node(item: Hit | Stored) -> BaseNode:
    if _NODE in item.metadata:
        node = metadata_dict_to_node(item.metadata, item.text)
        # Those of the document, which may have changed since: filters see them, too.
        present = {name: value for name, value in item.metadata.items() if name not in _NOT_ITS_OWN}
        node.metadata = {
            name: node.metadata[name] for name in _NOT_ITS_OWN if name in node.metadata
        } | present
        return node
    metadata = {"title": item.title, **item.metadata} if item.title else dict(item.metadata)
    return TextNode(id_=item.id, text=item.text, metadata=metadata)
