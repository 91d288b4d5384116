"""What is asked and among what: queries taken apart, filters applied, one layer for those of the same state.

A query may name phrases that a document must hold ("beam search", +python) or must not (-java); see
`dsearch.index.query`. They narrow the state that this query is answered from; its words go to encoder and
BM25. So a batch is one layer for all queries without such restrictions and one for each other set of them.

A query of nothing but restrictions that leave no word to look for (-java, "to be or not to be" by keywords)
has nothing to rank by: all that it lets through comes with equal weights, in the order of the collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from dsearch.engine.layer import SearchLayer
from dsearch.engine.options import LayerOptions
from dsearch.engine.query_groups import grouped, states_of
from dsearch.engine.snapshot import Snapshot
from dsearch.types import Mode, Stamp

if TYPE_CHECKING:
    from dsearch.engine.collection_reader import CollectionReader

Queries = Sequence[str] | Float[Tensor, "batch encoder_dim"]
Turn = Callable[[Float[Tensor, "batch encoder_dim"]], Float[Tensor, "batch encoder_dim"]]


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries that one layer answers together.

    Attributes:
        numbers: which queries of the batch they are.
        layer: over the state that they are answered from.
        states: what it takes for them.
        texts: their words, without quotes, signs and what is excluded; None where words have no part.
    """

    numbers: list[int]
    layer: SearchLayer
    states: Float[Tensor, "batch encoder_dim"]
    texts: list[str] | None


def asked(
    collection: CollectionReader,
    queries: Queries,
    options: LayerOptions,
    *,
    model: str | None = None,
    filter: object | None = None,
    operators: bool = True,
    pinned: Stamp | None = None,
    narrow: Callable[[Snapshot], Snapshot] | None = None,
    turn: Turn | None = None,
) -> tuple[list[Asked], Stamp]:
    """The queries with the layers that answer them, from one state, and the stamp of the answers.

    Args:
        collection: what is asked.
        queries: texts, or what takes the place of their embeddings.
        options: of the layers.
        model: a version; the live one when None.
        filter: what documents must meet; None for all.
        operators: whether quotes and signs in a text restrict.
        pinned: the state and model to answer from; the present ones when None.
        narrow: takes more away from the state.
        turn: what is made of the queries' embeddings.

    Raises:
        InvalidRequest: not a filter; options out of range.
        Gone, Conflict: the pinned state is not there any more, or never was.
        ModelNotFound.
    """
    live = collection.live_model
    if pinned is None:
        version = live if model is None else model
        state = collection.snapshot_for(version)
        pinned = Stamp(state.generation.number, version, state.sequence)
    else:
        state = collection.snapshot_at(pinned)
    head = collection.head(pinned.model)
    state = collection.narrowed(state, filter)
    if narrow is not None:
        state = narrow(state)
    mode: Mode = options.get("mode", "hybrid")
    if isinstance(queries, Tensor):
        mode = "dense" if mode == "hybrid" else mode
        layer = collection.layers.over(state, head, _with_mode(options, mode))
        states = queries if turn is None else turn(queries)
        return [Asked([*range(len(states))], layer, states, None)], pinned
    groups = grouped(queries, mode, state.keyword.tokenizer, operators=operators)
    states = states_of(
        groups, lambda texts: collection.query_states(texts, mode, pinned.model), collection.store.dimension
    )
    if mode != "keyword" and pinned.model == live:
        collection.drift.note(live, states.numpy())
    states = states if turn is None else turn(states)
    found: list[Asked] = []
    for group in groups:
        layer = collection.layers.over(state.holding(group.phrases), head, _with_mode(options, group.mode))
        own = states if len(groups) == 1 else states[group.numbers]
        found.append(Asked(group.numbers, layer, own, group.texts))
    return found, pinned


def _with_mode(options: LayerOptions, mode: Mode) -> LayerOptions:
    changed = options.copy()
    changed["mode"] = mode
    return changed
