"""DSPy: a collection as a retriever whose metric flows back as the outcome of each program's run.

    retriever = DSearchRetriever(dsearch.Client(URL), "papers")
    evaluate = dspy.Evaluate(devset=examples, metric=retriever.learning(metric))

Each run of a program is an episode: its searches, the passages that it got, and at the end the metric.
Later trainings learn from it as from agents (guide `integrations`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dsearch.errors import MissingExtra

try:
    import dspy
except ImportError as error:
    raise MissingExtra("dspy is not installed; run: pip install 'dsearch[dspy]'") from error

if TYPE_CHECKING:
    from dsearch.client import Client, LocalEngine

Metric = Callable[..., Any]
Useful = Callable[[Any, Any, Sequence[str]], Sequence[str]]

_SUCCESS = 0.5
# A run of a program and its metric are called in one thread, one after the other.
_run: ContextVar[tuple[str, tuple[str, ...]] | None] = ContextVar("dsearch_run", default=None)


class DSearchRetriever(dspy.Retrieve):
    """A collection as a retriever; copies of a program share its engine.

    Args:
        engine: a client of a server, or a local engine.
        collection: name of a collection.
        k: number of passages.
        options: further options of each search, such as filter={"year": {"gte": 2017}}; a call's own take the
            place of those of the same name.
    """

    def __init__(self, engine: Client | LocalEngine, collection: str, k: int = 3, **options: Any):
        super().__init__(k=k)
        self.engine, self.collection, self.options = engine, collection, options

    def forward(self, query: str, k: int | None = None, **kwargs: Any) -> Any:
        """Search. Returns a prediction with `passages` (texts), `ids` and `scores`, best first."""
        options: dict[str, Any] = {**self.options, **kwargs}
        episode, read = _run.get() or (f"dspy-{uuid4().hex}", ())
        limit = self.k if k is None else k
        hits = self.engine.search(self.collection, query, limit=limit, episode=episode, **options).hits
        ids = [hit.id for hit in hits]
        for id in ids:  # every passage goes into the prompt
            self.engine.get(self.collection, id, episode=episode)
        _run.set((episode, (*read, *ids)))
        return dspy.Prediction(
            passages=[hit.text for hit in hits], ids=ids, scores=[hit.score for hit in hits]
        )

    def learning(self, metric: Metric, *, success: float = _SUCCESS, useful: Useful | None = None) -> Metric:
        """Wrap a metric: it judges as before, and its judgement is reported as the outcome of the run.

        Args:
            metric: called with an example and its prediction, and whatever else DSPy gives.
            success: least value of the metric that is a success.
            useful: called with example, prediction and the ids of the passages; returns the ids that helped.
                Without it all passages of a success count alike.
        """

        def judge(example: Any, prediction: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                value = metric(example, prediction, *args, **kwargs)
                run = _run.get()
            finally:  # a metric that fails ends its run, too: the next example has another
                _run.set(None)
            if run is not None:
                episode, ids = run
                helped = [] if useful is None else list(useful(example, prediction, ids))
                number = float(getattr(value, "score", value))
                self.engine.report_outcome(
                    self.collection, episode, useful_ids=helped, success=number >= success
                )
            return value

        return judge

    def __deepcopy__(self, memo: dict[int, Any]) -> DSearchRetriever:
        """A retriever of the same engine: optimisers copy programs."""
        return DSearchRetriever(self.engine, self.collection, self.k, **self.options)
