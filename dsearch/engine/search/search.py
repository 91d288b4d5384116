"""Search for a batch of texts in one state; with a cursor, in the state of the first page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsearch.attention.arrays import inference
from dsearch.engine.indexing.own_vectors import Vectors
from dsearch.engine.models.confidence import confidences
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.engine.search.arrangement import (
    OWN,
    DocumentsOfState,
    absent_fields,
    arranged,
    shaped_by,
    sharing_attention,
)
from dsearch.engine.search.hits import HitPage, PageRequest, highlighter, hits_of, results_of, summaries_of
from dsearch.engine.search.queries import (
    QueryBatch,
    checked_questions,
    layer_options,
    resolve_queries,
    tokens_of,
)
from dsearch.engine.state.state import State
from dsearch.search_options import SearchOptions
from dsearch.store import filter_of
from dsearch.store.reader import refuse_misspelt
from dsearch.types import SearchResult, Stamp

if TYPE_CHECKING:
    from dsearch.engine.ranking.explain import Explain
    from dsearch.engine.ranking.output import SearchOutput
    from dsearch.engine.search.highlights import ShowMeaning
    from dsearch.evaluation.confidence import Calibration


def search(
    collection: State,
    queries: Sequence[str],
    chosen: SearchOptions,
    vectors: Vectors | None = None,
) -> list[SearchResult]:
    """See `Collection.search`; with vectors a query may be "", of which nothing is searched by words."""
    started = time.perf_counter()
    states, questions = checked_questions(queries, chosen, vectors, collection.store.dimension)
    tree = filter_of(chosen.filter)
    places = PageRequest.of_batch(collection.name, questions, chosen, tree)
    if not places:
        return []
    groups, stamp = resolve_queries(
        collection,
        queries,
        layer_options(chosen, places[0]),
        model=chosen.model,
        filter=tree,
        operators=chosen.operators,
        pinned=places[0].pinned,
        vectors=states,
        typos=chosen.typos,
        differentiable=False,
    )
    turned = states is not None
    results = [
        result
        for group in groups
        for result in search_group(
            collection, group, stamp, chosen, places=places, queries=queries, turned=turned
        )
    ]
    order = [number for group in groups for number in group.numbers]
    took_ms = (time.perf_counter() - started) * 1000
    by_number = dict(zip(order, results, strict=True))
    waiting = collection.waiting
    return [replace(by_number[number], took_ms=took_ms, waiting=waiting) for number in range(len(queries))]


def search_group(
    collection: State,
    group: QueryBatch,
    stamp: Stamp,
    chosen: SearchOptions,
    *,
    places: Sequence[PageRequest],
    queries: Sequence[str],
    turned: bool = False,
) -> list[SearchResult]:
    """Build one result per query of a group, in its order.

    Args:
        collection: the collection.
        group: queries that share a layer.
        stamp: state and model that the layer is of.
        chosen: options of the search.
        places: first place of each query of the batch.
        queries: texts of the batch.
        turned: whether the states are other than those of the texts.
    """
    layer, texts = group.layer, group.texts
    shape = shaped_by(chosen.fields)
    page = HitPage(chosen.limit, places[0].offset, chosen.score_threshold, chosen.weight_threshold)
    by_words = chosen.highlight and chosen.highlight_by == "words"
    with inference():
        output = layer.ranked(group.states, texts, group.tokens)
        attention = sharing_attention(output)
        covers = chosen.covers(layer.snapshot.positions)
        summaries = summaries_of(attention, covered_mass(attention, layer, texts) if covers else None)
        calibration = None if turned else _calibration(collection, texts, stamp, chosen)
        estimated = None
        if calibration is not None:
            estimated = confidences(attention, layer.head, layer.temperature, calibration)
        ranking, reached = output, page.reached(output)
        documents = DocumentsOfState(layer.snapshot, collection.field_cache.of, collection.document_cache.of)
        output, duplicates = arranged(ranking, documents, reached, chosen)
        if output is not ranking:  # some are no hits of their own
            reached = page.reached(output)
        hits = hits_of(
            output,
            layer,
            collection.document_cache,
            page,
            reached,
            explain=_explanation(group, chosen, output),
            highlight=highlighter(layer.snapshot.keyword, texts) if by_words else None,
            meaning=None if by_words else _meaning(collection, group, stamp, chosen),
            duplicates=duplicates,
        )
        if chosen.fields is not None:
            absent = absent_fields([hit for of_query in hits for hit in of_query], chosen.fields)
            refuse_misspelt(collection.store, absent, "fields", also=OWN)
            hits = [[shape(hit) for hit in of_query] for of_query in hits]
        named = [(queries[number], places[number]) for number in group.numbers]
        results = results_of(named, reached, hits, summaries, page, stamp)
        if estimated is None:
            return results
        return [replace(result, confidence=of) for result, of in zip(results, estimated, strict=True)]


def _calibration(
    collection: State, texts: Sequence[str] | None, stamp: Stamp, chosen: SearchOptions
) -> Calibration | None:
    """Calibration of the first hits' confidence; None where the first hit is not the likeliest."""
    if texts is None or chosen.mode != "hybrid" or chosen.sort is not None:
        return None
    return collection.calibrations.of(stamp.model)


def _explanation(group: QueryBatch, chosen: SearchOptions, output: SearchOutput) -> Explain | None:
    """Parts of the scores; None unless asked for."""
    if not chosen.explain:
        return None
    from dsearch.engine.ranking.explain import explainer

    return explainer(output, group.layer, group.texts)


def _meaning(collection: State, group: QueryBatch, stamp: Stamp, chosen: SearchOptions) -> ShowMeaning | None:
    """Highlights by meaning, from the tokens of queries and documents; None unless asked for."""
    if not chosen.highlight or group.texts is None:
        return None
    from dsearch.engine.search.highlights import meaning_highlighter

    layer = group.layer
    tokens = tokens_of(collection, group.texts, layer.snapshot, stamp.model)
    return meaning_highlighter(layer.snapshot, tokens)
