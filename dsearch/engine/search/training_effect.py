"""Effect of training on a hit: its score, weight and rank before, and the training queries that pulled it.

"Before" is the attention of the live model's parent (or its nearest ancestor that is served) over the same
candidates for the same query. With one head, `score = before.score + dense + keyword + memory`, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from dsearch.attention.arrays import Array, numbers_of
from dsearch.engine.models.files import UNTRAINED, served_version
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.explain import shares_of
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.search.queries import states_for
from dsearch.engine.state.caches import layer_of
from dsearch.engine.state.state import CollectionState
from dsearch.search_options import SearchOptions
from dsearch.types import LearnedEffect

Tell = Callable[[int, int], LearnedEffect | None]


def learned(
    collection: CollectionState,
    version: str,
    output: SearchOutput,
    layer: Ranker,
    states: Float[Array, "batch encoder_dim"],
    texts: Sequence[str] | None,
    chosen: SearchOptions,
    *,
    turned: bool = False,
) -> Tell | None:
    """Return a function for the effect of training on a candidate, given its row and column in `output`.

    None if the effect is undefined: for the untrained model, for a model with its own documents (whose
    embeddings differ), with a learned score, and for one with its own query encoder if likeness `turned` the
    query.
    """
    if version == UNTRAINED:
        return None
    model = collection.store.model(version)
    if model.parent is None:
        return None
    ancestor = served_version(collection.store, model.parent)  # there for as long as its children are
    if "documents" in model.record or "documents" in collection.store.model(ancestor).record:
        return None
    if layer.head.learned_score is not None or collection.ranking_head(ancestor).learned_score is not None:
        return None  # scores of two kinds have no difference
    same = collection.encoder_identity_of(version) == collection.encoder_identity_of(ancestor)
    if not same and (turned or texts is None):
        return None
    earlier = states if same else collection.query_embeddings(texts or [], layer.mode, ancestor)
    options: LayerOptions = {
        "mode": layer.mode,
        "candidates": layer.candidates,
        "hops": chosen.hops,
        "hop_strength": chosen.hop_strength,
    }
    parent = layer_of(layer.snapshot, collection.ranking_head(ancestor), options)
    states = states_for(parent.head, earlier)
    before = parent.among(states, texts, output.positions, output.beyond)
    lessons = None if layer.mode == "keyword" else collection.lessons_of(version)
    now_dense, now_keyword = _parts(output, layer)
    then_dense, then_keyword = _parts(before, parent)

    def tell(query: int, column: int) -> LearnedEffect:
        position = output.positions[query, column]
        then = int(np.flatnonzero(before.positions[query] == position)[0])  # the same candidates
        pulled = None
        if lessons is not None:
            at = output.positions[query : query + 1, column : column + 1]
            embedding = layer.snapshot.embeddings(at)[0, 0]
            row = int(layer.snapshot.rows(at)[0, 0])
            pulled = lessons.of(numbers_of(states[query]), embedding, row)
        return LearnedEffect(
            parent=ancestor,
            score=float(before.scores[query, then]),
            weight=float(before.weights[query, then]),
            rank=then + 1,
            dense=float(now_dense[query, column]) - float(then_dense[query, then]),
            keyword=float(now_keyword[query, column]) - float(then_keyword[query, then]),
            memory=_memory_at(output, query, column) - _memory_at(before, query, then),
            lessons=pulled,
        )

    return tell


def _memory_at(output: SearchOutput, query: int, column: int) -> float:
    return 0.0 if output.memory is None else float(output.memory[query, column])


def _parts(
    output: SearchOutput, layer: Ranker
) -> tuple[Float[Array, "batch candidates"], Float[Array, "batch candidates"]]:
    """Dense and keyword part of each score: the heads', by how much of the weight comes from each."""
    shares = shares_of(output, layer.head, layer.temperature)
    return (shares * output.dense).sum(1), (shares * output.keyword).sum(1)
