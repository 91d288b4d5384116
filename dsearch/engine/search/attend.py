"""Attention of queries over a collection: ids, weights and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention_options import COVERED_ENOUGH
from dsearch.engine.indexing.own_vectors import query_vectors
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.state.state import CollectionState
from dsearch.errors import InvalidRequest
from dsearch.search_options import COVERAGE_DOCUMENTS
from dsearch.types import Stamp

Queries = Sequence[str] | Float[Tensor, "batch encoder_dim"]


@dataclass(frozen=True, slots=True)
class AttendResult:
    """Result of `attend`, with the candidates' ids in the same order; "" where there is none.

    `note` says so if the candidates hold too little of the attention over all documents
    (`output.covered_mass`).
    """

    output: SearchOutput
    ids: list[list[str]]
    stamp: Stamp
    note: str | None = None


def attend(
    collection: CollectionState,
    queries: Queries,
    *,
    model: str | None,
    filter: object | None,
    options: LayerOptions,
) -> AttendResult:
    """See `Collection.attend`."""
    with torch.inference_mode():
        layer, stamp, states, texts = resolve_inputs(collection, queries, model, filter, options)
        output = layer(states, texts)
    ids = collection.ids_at(layer.snapshot, output.positions)
    return AttendResult(output, ids, stamp, coverage_note(layer, output))


def coverage_note(layer: SearchLayer, output: SearchOutput) -> str | None:
    """Say how little of the attention the candidates hold, where it is less than `COVERED_ENOUGH`."""
    if output.covered_mass is None or not len(output.covered_mass):
        return None
    least = float(output.covered_mass.min())
    if least >= COVERED_ENOUGH:
        return None
    documents = layer.snapshot.documents
    about = "about " if documents > COVERAGE_DOCUMENTS else ""
    return (
        f"the candidates hold {about}{least:.1%} of the attention over all {documents} documents; "
        "use over='all' for all of it, or more candidates"
    )


def resolve_inputs(
    collection: CollectionState,
    queries: Queries,
    model: str | None,
    filter: object | None,
    options: LayerOptions,
) -> tuple[SearchLayer, Stamp, Float[Tensor, "batch encoder_dim"], Sequence[str] | None]:
    """Return the layer that answers, its stamp, and its input: states, and the texts if there are any."""
    mode = options.get("mode", "hybrid")
    if isinstance(queries, Tensor):
        queries = query_vectors(queries, collection.store.dimension).float()
        mode = "dense" if mode == "hybrid" else mode
    else:
        require_field(options)
    layer, stamp = collection.layer_and_stamp(model=model, filter=filter, **{**options, "mode": mode})
    if isinstance(queries, Tensor):
        return layer, stamp, queries, None
    mode = mode if layer.match is None else "keyword"  # texts are compared, not embeddings
    return layer, stamp, collection.query_states(queries, mode, stamp.model), queries


def require_field(options: LayerOptions) -> None:
    """Refuse an exact match of texts without a field: equal embeddings are no equal texts.

    Raises:
        InvalidRequest: naming the option.
    """
    if options.get("score") == "exact_match" and options.get("match_field") is None:
        raise InvalidRequest(
            "score='exact_match' of texts compares a field; give match_field: id, title, text or one of the "
            "metadata. Without one it compares vectors, so give vectors"
        )
