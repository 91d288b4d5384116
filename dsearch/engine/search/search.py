"""Search for a batch of texts in one state; with a cursor, in the state of the first page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from dsearch.attention.arrays import inference
from dsearch.engine.indexing.own_vectors import Vectors
from dsearch.engine.models.confidence import confidences
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.engine.search.arrangement import OWN, absent_fields, arranged, shaped_by, sharing_attention
from dsearch.engine.search.hits import HitPage, PageRequest, highlighter, hits_of, results_of, summaries_of
from dsearch.engine.search.queries import (
    QueryBatch,
    checked_questions,
    layer_options,
    resolve_queries,
    tokens_of,
)
from dsearch.engine.state.state import CollectionState
from dsearch.search_options import SearchOptions
from dsearch.store import parse_filter
from dsearch.store.filters.field_names import refuse_misspelt
from dsearch.types import SearchResult, Stamp


def search(
    collection: CollectionState,
    queries: Sequence[str],
    chosen: SearchOptions,
    vectors: Vectors | None = None,
) -> list[SearchResult]:
    """See `Collection.search`; with vectors a query may be "", of which nothing is searched by words."""
    started = time.perf_counter()
    states, questions = checked_questions(queries, chosen, vectors, collection.store.dimension)
    tree = None if chosen.filter is None else parse_filter(chosen.filter)
    places = PageRequest.of_batch(questions, chosen, tree)
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
        for result in answered(
            collection, group, stamp, chosen, places=places, queries=queries, turned=turned
        )
    ]
    order = [number for group in groups for number in group.numbers]
    took_ms = (time.perf_counter() - started) * 1000
    by_number = dict(zip(order, results, strict=True))
    waiting = collection.waiting
    return [replace(by_number[number], took_ms=took_ms, waiting=waiting) for number in range(len(queries))]


def answered(
    collection: CollectionState,
    group: QueryBatch,
    stamp: Stamp,
    chosen: SearchOptions,
    *,
    places: Sequence[PageRequest],
    queries: Sequence[str],
    turned: bool = False,
) -> list[SearchResult]:
    """Answer the queries of a group, in its order; `places` and `queries` are those of the batch.

    `turned`: the states are not those of the texts.
    """
    layer, texts = group.layer, group.texts
    shape = shaped_by(chosen.fields)
    page = HitPage(chosen.limit, places[0].offset, chosen.score_threshold, chosen.weight_threshold)
    with inference():
        output = layer.ranked(group.states, texts, group.tokens)
        covers = chosen.covers(layer.snapshot.positions)
        attention = sharing_attention(output)
        mass = covered_mass(attention, layer, texts) if covers else None
        summaries = summaries_of(attention, mass)
        calibration = None
        by_score = chosen.sort is None  # otherwise the first hit is not the likeliest
        if texts is not None and chosen.mode == "hybrid" and by_score and not turned:
            calibration = collection.calibrations.of(stamp.model)
        estimated = [] if calibration is None else confidences(attention, layer, calibration)
        output, duplicates = arranged(
            output,
            layer,
            page.reached(output),
            chosen,
            collection.kept_fields.of,
            collection.kept_documents.of,
        )
        explain = None
        if chosen.explain:
            from dsearch.engine.ranking.explain import explainer
            from dsearch.engine.search.training_effect import learned

            change = None
            if output.second is None:  # the parent's ranking has none
                change = learned(
                    collection, stamp.model, output, layer, group.states, texts, chosen, turned=turned
                )
            explain = explainer(output, layer, texts, change)
        by_words = chosen.highlight_by == "words"
        meaning = None
        if chosen.highlight and not by_words and texts is not None:
            from dsearch.engine.search.highlights.meaning import meaning_highlighter

            tokens = tokens_of(collection, texts, layer.snapshot, stamp.model)
            meaning = meaning_highlighter(layer.snapshot, layer.reranker.stage, tokens)
        hits = hits_of(
            output,
            layer,
            collection.kept_documents,
            page,
            explain=explain,
            highlight=highlighter(layer.snapshot.keyword, texts) if chosen.highlight and by_words else None,
            meaning=meaning,
            duplicates=duplicates,
        )
        absent = absent_fields([hit for of_query in hits for hit in of_query], chosen.fields)
        refuse_misspelt(collection.store, absent, "fields", also=OWN)
        hits = [[shape(hit) for hit in of_query] for of_query in hits]
        named = [(queries[number], places[number]) for number in group.numbers]
        results = results_of(named, output, hits, summaries, page, stamp)
        if calibration is None:
            return results
        return [replace(result, confidence=of) for result, of in zip(results, estimated, strict=True)]
