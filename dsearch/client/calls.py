"""`Calls`: a method for each call of the product, which clients and an engine of this process share.

    @door(GetDocument)
    def get(self, collection: str, id: str, *, episode: str | None = None) -> Document: ...

The method makes a `GetDocument` of its arguments and gives it to the client's `run`: `Client` and
`LocalEngine` return its result, `AsyncClient` a coroutine of it; type checkers see both. What a call does
stands at its declaration, in `dsearch/operations/`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from dsearch import operations
from dsearch.attention_options import AttentionKeywords, SelectionKeywords
from dsearch.client.uploads import AnyEvidence, GivenFiles, TrainedEncoder, TrainedLayer
from dsearch.jobs import ExampleScores, LearningOptions, SaveOptions, TrainOptions, TuneOptions
from dsearch.operations.declared import Call
from dsearch.results import (
    AliasSet,
    Attention,
    CollectionInfo,
    DeleteResult,
    DocumentPage,
    DraftAdded,
    Facets,
    Gradients,
    MemoryResult,
    MetadataResult,
    ModelAdded,
    Models,
    Predictions,
    PromotionResult,
    RowsDropped,
    Task,
    TaskPage,
    WriteResult,
)
from dsearch.search_options import SearchKeywords
from dsearch.types import Document, FeedbackResult, OwnJudgements, QueriesToJudge, SearchResult, Stamp

if TYPE_CHECKING:
    from dsearch.client.wire import Rows, Vectors

P = ParamSpec("P")
T = TypeVar("T")


class BlockingRunner(Protocol):
    """Answers a call and waits for it."""

    def run(self, call: Call[T], /) -> T:
        """Return the result of a call."""
        ...


class AsyncRunner(Protocol):
    """Answers a call in an event loop."""

    async def run(self, call: Call[T], /) -> T:
        """Return the result of a call."""
        ...


class Door(Generic[P, T]):
    """Method of a client; its class has the door itself, with the method's signature and description."""

    def __init__(self, kind: type[Call[T]], method: Callable[Concatenate[Any, P], T]):
        self.kind = kind
        self._method = method
        functools.update_wrapper(self, method)
        place = kind.place
        self.__doc__ = f"{inspect.getdoc(kind)}\n\n`{place.method} {place.template}`"
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        self._own = frozenset(names) if "options" in names else None

    def request(self, *args: P.args, **arguments: P.kwargs) -> Call[T]:
        """Return the request that the method makes of its arguments.

        Raises:
            TypeError: they are not those of the method.
        """
        given: dict[str, Any] = dict(arguments)
        if self._own is not None:
            options = {name: given.pop(name) for name in arguments if name not in self._own}
            given["options"] = options
        try:
            return self.kind(*args, **given)
        except TypeError:
            inspect.signature(self._method).bind(None, *args, **arguments)  # says it by the method's name
            raise

    def __call__(self, client: BlockingRunner, /, *args: P.args, **arguments: P.kwargs) -> T:
        """Answer the call by a client that blocks."""
        return client.run(self.request(*args, **arguments))

    @overload
    def __get__(self, client: None, owner: Any) -> Door[P, T]: ...
    @overload
    def __get__(self, client: BlockingRunner, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """Return the method of `client`; the door itself of a class."""
        if client is None:
            return self

        def call(*args: P.args, **arguments: P.kwargs) -> Any:
            return client.run(self.request(*args, **arguments))

        call.__name__, call.__qualname__ = self._method.__name__, self._method.__qualname__
        call.__module__, call.__doc__ = self._method.__module__, self.__doc__
        call.__signature__ = self._bound_signature  # type: ignore[attr-defined]
        return call

    @functools.cached_property
    def _bound_signature(self) -> inspect.Signature:
        signature = inspect.signature(self._method)
        return signature.replace(parameters=[*signature.parameters.values()][1:])


def door(kind: type[Call[T]]) -> Callable[[Callable[Concatenate[Any, P], T]], Door[P, T]]:
    """Make a method a door of this call; its parameters are the call's, its body is empty."""
    return functools.partial(Door, kind)


Filter: TypeAlias = Mapping[str, Any]
"""What a document's metadata must meet: `{"year": {"gte": 2017}}`, with `and`, `or` and `not`."""


class FindOptions(SearchKeywords, total=False):
    """Options of a search, described by `dsearch.search_options.SearchOptions`, whose defaults apply.

    fields: names with commas between, or a list of them.
    explore: share of pages on which a coin swaps two documents, for feedback; servers only, as `partial`.
    episode: name of the task that the search belongs to, for `report_outcome`.
    """

    fields: str | Sequence[str] | None
    explore: float
    episode: str


class WayToAttend(AttentionKeywords, SelectionKeywords, total=False):
    """Options of attention, described by `dsearch.attention_options.AttentionOptions`, whose defaults apply.

    filter: condition on the documents' metadata.
    """

    score: str
    filter: Filter | None


class AttendOptions(WayToAttend, total=False):
    """`WayToAttend`, and model: a version; the live one when left out."""

    model: str | None


class DifferentiableOptions(AttendOptions, total=False):
    """`AttendOptions`, and dtype: what is computed in; stamp: the state to be asked, from an answer.

    ids: up to 64 ids of documents whose embeddings are the queries, in place of texts and vectors; draft: id
    of a draft head that answers in place of a version (`draft_head`); field: number of the metadata,
    or value, that is pooled in place of W_V e; with_head: tensors of a head that answers in place of the
    version's, named and shaped as `head` gives them; bias: a number for each position of the state that
    answers, added to the scores, whose gradient `vjp` gives; table: a row for each of them, pooled in place
    of W_V e, likewise.
    """

    dtype: Literal["float32", "float64"]
    stamp: Stamp | None
    ids: Sequence[str] | None
    draft: str | None
    field: str | None
    with_head: Mapping[str, Any] | None
    bias: Any
    table: Any


Part = Literal["keys", "values", "parts", "slopes", "positions", "texts"]


class Calls:
    """The calls that both clients and an engine of this process have."""

    # ---- collections

    @door(operations.Ready)
    def ready(self) -> bool: ...

    @door(operations.ListCollections)
    def collections(self) -> list[CollectionInfo]: ...

    @door(operations.DescribeCollection)
    def collection(self, name: str) -> CollectionInfo: ...

    @door(operations.ReadStatistics)
    def statistics(self, name: str) -> dict[str, Any]: ...

    @door(operations.CreateCollection)
    def create_collection(
        self,
        name: str,
        *,
        language: str | None = None,
        passages: Mapping[str, Any] | None = None,
        kind: str | None = None,
        dimension: int | None = None,
        search_fields: Sequence[str] | None = None,
    ) -> CollectionInfo: ...

    @door(operations.DeleteCollection)
    def delete_collection(self, name: str) -> None: ...

    @door(operations.ListAliases)
    def aliases(self) -> dict[str, str]: ...

    @door(operations.SetAlias)
    def set_alias(self, alias: str, collection: str) -> AliasSet: ...

    @door(operations.DropAlias)
    def drop_alias(self, alias: str) -> None: ...

    # ---- documents

    @door(operations.Upsert)
    def upsert(
        self,
        collection: str,
        documents: Iterable[Document | Mapping[str, Any]],
        *,
        embeddings: Vectors | None = None,
    ) -> WriteResult: ...

    @door(operations.GetDocument)
    def get(self, collection: str, id: str, *, episode: str | None = None) -> Document: ...

    @door(operations.DeleteDocument)
    def delete(self, collection: str, id: str) -> DeleteResult: ...

    @door(operations.DeleteDocuments)
    def delete_many(
        self, collection: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
    ) -> DeleteResult: ...

    @door(operations.UpdateMetadata)
    def update_metadata(self, collection: str, id: str, changes: Mapping[str, Any]) -> MetadataResult: ...

    @door(operations.ListDocuments)
    def documents(
        self,
        collection: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        filter: Filter | None = None,
    ) -> DocumentPage: ...

    @door(operations.CountFacets)
    def facets(
        self, collection: str, fields: Sequence[str], *, filter: Filter | None = None, limit: int = 10
    ) -> Facets: ...

    # ---- search and attention

    @door(operations.Search)
    def search(
        self,
        collection: str,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[FindOptions],
    ) -> SearchResult: ...

    @door(operations.SearchBatch)
    def search_batch(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        **options: Unpack[FindOptions],
    ) -> list[SearchResult]: ...

    @door(operations.FindSimilar)
    def similar(
        self,
        collection: str,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        vector: Sequence[float] | None = None,
        **options: Unpack[FindOptions],
    ) -> SearchResult: ...

    @door(operations.RecordFeedback)
    def feedback(self, collection: str, events: Sequence[Mapping[str, Any]]) -> FeedbackResult: ...

    @door(operations.ReadOwnJudgements)
    def own_judgements(self, collection: str, *, client_id: str | None = None) -> OwnJudgements: ...

    @door(operations.FindQueriesToJudge)
    def queries_to_judge(
        self,
        collection: str,
        *,
        version: str | None = None,
        limit: int = 10,
        client_id: str | None = None,
    ) -> QueriesToJudge: ...

    @door(operations.ReportOutcome)
    def report_outcome(
        self,
        collection: str,
        episode: str,
        *,
        useful_ids: Sequence[str] = (),
        success: bool,
        client_id: str = "",
    ) -> FeedbackResult: ...

    @door(operations.Attend)
    def attend(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        include: Sequence[Part] = (),
        **options: Unpack[DifferentiableOptions],
    ) -> Attention: ...

    @door(operations.Differentiate)
    def vjp(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        context: Vectors | None = None,
        weights: Rows | None = None,
        scores: Rows | None = None,
        head: bool = True,
        **options: Unpack[DifferentiableOptions],
    ) -> Gradients: ...

    @door(operations.Predict)
    def predict(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        ids: Sequence[str] | None = None,
        field: str,
        evidence: int = 10,
        **options: Unpack[AttendOptions],
    ) -> Predictions: ...

    # ---- models

    @door(operations.ListModels)
    def models(self, collection: str) -> Models: ...

    @door(operations.Promote)
    def promote(self, collection: str, version: str) -> PromotionResult: ...

    @door(operations.Rollback)
    def rollback(self, collection: str) -> PromotionResult: ...

    @door(operations.RollbackRows)
    def rollback_rows(self, collection: str, sequence: int) -> RowsDropped: ...

    @door(operations.Remember)
    def remember(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        *,
        accept: bool = False,
    ) -> MemoryResult: ...

    @door(operations.DeleteModel)
    def delete_model(self, collection: str, version: str) -> None: ...

    @door(operations.ReadHead)
    def head(self, collection: str, version: str) -> dict[str, Any]: ...

    @door(operations.AddDraft)
    def draft_head(
        self, collection: str, tensors: Mapping[str, Any], *, parent: str | None = None
    ) -> DraftAdded: ...

    @door(operations.ReadDraft)
    def draft_tensors(self, collection: str, draft: str) -> dict[str, Any]: ...

    @door(operations.DropDraft)
    def drop_draft(self, collection: str, draft: str) -> None: ...

    @door(operations.AddModel)
    def add_model(
        self,
        collection: str,
        tensors: Mapping[str, Any],
        *,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> ModelAdded: ...

    # ---- tasks

    @door(operations.AddFiles)
    def add_files(self, collection: str, files: GivenFiles) -> Task: ...

    @door(operations.Train)
    def train(
        self,
        collection: str,
        *,
        queries: Mapping[str, str] | None = None,
        judgements: Mapping[str, Mapping[str, float]] | None = None,
        **options: Unpack[TrainOptions],
    ) -> Task: ...

    @door(operations.Tune)
    def tune(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        **options: Unpack[TuneOptions],
    ) -> Task: ...

    @door(operations.Evaluate)
    def evaluate(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        *,
        model: str | None = None,
        systems: Sequence[Mapping[str, str]] | None = None,
        training: Mapping[str, Mapping[str, float]] | None = None,
    ) -> Task: ...

    @door(operations.Refresh)
    def refresh(
        self,
        collection: str,
        *,
        kind: str | None = None,
        recall_target: float | None = None,
        memory_bytes: int | None = None,
        queries: Sequence[str] | None = None,
    ) -> Task: ...

    @door(operations.Compact)
    def compact(self, collection: str) -> Task: ...

    @door(operations.Migrate)
    def migrate(self, collection: str, *, encoder: str | None = None) -> Task: ...

    @door(operations.SaveModel)
    def save_model(
        self,
        collection: str,
        layer: TrainedLayer,
        *,
        evidence: AnyEvidence = None,
        measure: str | None = None,
        encoder: TrainedEncoder = None,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
        **options: Unpack[SaveOptions],
    ) -> Task: ...

    @door(operations.JudgeModel)
    def judge_model(
        self, collection: str, version: str, evidence: ExampleScores, **options: Unpack[LearningOptions]
    ) -> Task: ...

    @door(operations.ReadTask)
    def task(self, id: str) -> Task: ...

    @door(operations.WaitForTask)
    def wait_for_task(
        self,
        id: str,
        *,
        timeout_s: float = 3600.0,
        every_s: float = 0.5,
        on_progress: Callable[[Task], None] | None = None,
    ) -> Task: ...

    @door(operations.ListTasks)
    def tasks(
        self,
        *,
        collection: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> TaskPage: ...

    @door(operations.CancelTask)
    def cancel_task(self, id: str) -> Task: ...
