"""Prepare a batch of queries: parse operators, apply filters, embed texts.

A query may name phrases that a document must contain ("beam search", +python) or must not (-java); see
`dsearch.index.keyword.query`. They restrict the documents that can answer this query; its words go to encoder
and BM25. Queries that require and exclude the same phrases share one `SearchLayer`: a batch has one layer for
all queries without such restrictions and one for each other set of them.

A query whose restrictions leave no word to search for (-java, "to be or not to be" by keywords) cannot rank.
All documents that it admits get equal weights, in the order of the collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Float32

from dsearch.attention.arrays import Array, numbers_of, zeros
from dsearch.attention.retrieval.fixed_head import FixedHead, HeadFormulas
from dsearch.encoder import TextEncoder
from dsearch.engine.indexing.own_vectors import Vectors, search_vectors
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.search.hits import PageRequest
from dsearch.engine.snapshot import QueryTokens, Snapshot, query_tokens
from dsearch.engine.state.state import State
from dsearch.errors import InvalidRequest, amount
from dsearch.index import ParsedQuery, Tokenizer, parse_query
from dsearch.search_options import SearchOptions
from dsearch.types import Mode, Stamp

Queries = Sequence[str] | Float[Array, "batch encoder_dim"]
Turn = Callable[[Float[Array, "batch encoder_dim"]], Float[Array, "batch encoder_dim"]]


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries that share one layer.

    Attributes:
        numbers: their numbers in the batch.
        layer: the layer, over one state.
        states: their embeddings, as the layer takes them.
        texts: their words, without quotes, signs and excluded phrases; None for queries without words.
        tokens: their tokens for the second stage; None without one.
    """

    numbers: list[int]
    layer: Ranker
    states: Float[Array, "batch encoder_dim"]
    texts: list[str] | None
    tokens: list[QueryTokens] | None = None


def resolve_queries(
    collection: State,
    queries: Queries,
    options: LayerOptions,
    *,
    model: str | None = None,
    filter: object | None = None,
    operators: bool = True,
    pinned: Stamp | None = None,
    narrow: Callable[[Snapshot], Snapshot] | None = None,
    turn: Turn | None = None,
    vectors: Float[Array, "batch encoder_dim"] | Float32[np.ndarray, "batch encoder_dim"] | None = None,
    typos: bool = False,
    differentiable: bool = True,
) -> tuple[list[QueryBatch], Stamp]:
    """Group queries by the layer that answers them, all in one state, with the stamp of the answers.

    Args:
        collection: the collection.
        queries: texts, or embeddings in their place.
        options: options of the layers.
        model: version that answers; the live one when None.
        filter: condition on documents; None for all.
        operators: whether quotes and signs in a text restrict.
        pinned: state and model to answer from; the present ones when None.
        narrow: restriction of the state beyond the filter.
        turn: change of the queries' embeddings.
        vectors: embeddings in place of those of the texts, whose words are for the keyword leg; without any
            word ("") the search is dense.
        typos: whether the keyword leg replaces words that no document has by the most similar ones.
        differentiable: whether layers are modules and states tensors; False answers in NumPy where possible.

    Raises:
        InvalidRequest: not a filter; options out of range.
        Gone, Conflict: the pinned state no longer exists, or never did.
        ModelNotFound.
    """
    live = collection.live_model
    if pinned is None:
        version = live if model is None else model
        state = collection.snapshot_for(version)
        pinned = Stamp(state.generation.number, version, state.sequence)
    else:
        state = collection.snapshot_at(pinned)
    head_of = collection.head if differentiable else collection.ranking_head
    head = head_of(pinned.model, pinned.sequence)
    state = collection.filtered(state, filter)
    if narrow is not None:
        state = narrow(state)
    mode: Mode = options.get("mode", "hybrid")
    if vectors is not None and isinstance(queries, Sequence) and not any(map(str.strip, queries)):
        queries = cast("Array", vectors)  # no words: as embeddings alone
    if not isinstance(queries, Sequence):
        mode = "dense" if mode == "hybrid" else mode
        layer = collection.layers.over(state, head, _with_mode(options, mode))
        states = _turned(states_for(head, queries), turn)
        return [QueryBatch([*range(len(states))], layer, states, None)], pinned

    groups = group_queries(queries, mode, state.keyword.tokenizer, operators=operators)
    # Tokens belong to the embedding of a text: a second stage has none for vectors or turned embeddings.
    of_texts = vectors is None and turn is None
    with_tokens = of_texts and (state.tokens is not None or options.get("stages") == 2)
    if vectors is not None:
        states = vectors
    else:
        token_encoder = None
        if with_tokens and collection.layers.over(state, head, _with_mode(options, mode)).stages == 2:
            token_encoder = token_encoder_of(collection, pinned.model)  # encodes both in one pass, if it can
        states = states_of(
            groups,
            lambda texts: collection.query_embeddings(texts, mode, pinned.model, tokens=token_encoder),
            collection.store.dimension,
        )
        if mode != "keyword" and pinned.model == live:
            collection.drift.note(live, states)
    states = _turned(states_for(head, states), turn)

    batches: list[QueryBatch] = []
    for group in groups:
        layer = collection.layers.over(
            state.matching_phrases(group.phrases), head, _with_mode(options, group.mode)
        )
        of_group = states if len(groups) == 1 else states[group.numbers]
        texts, tokens = group.texts, None
        if with_tokens and layer.stages == 2 and texts is not None:
            tokens = tokens_of(collection, texts, layer.snapshot, pinned.model)
        if typos and texts is not None:
            texts = [state.keyword.respelt(text, state.fresh.texts) for text in texts]
        batches.append(QueryBatch(group.numbers, layer, of_group, texts, tokens))
    return batches, pinned


def states_for(head: HeadFormulas, states: Any) -> Array:
    """Return states as arrays for a fixed head, as tensors for one that can learn."""
    if isinstance(head, FixedHead):
        return numbers_of(states)
    import torch

    return torch.as_tensor(states)


def _turned(states: Array, turn: Turn | None) -> Array:
    return states if turn is None else turn(states)


def checked_questions(
    queries: Sequence[str], chosen: SearchOptions, vectors: Vectors | None, dimension: int
) -> tuple[Float32[np.ndarray, "batch encoder_dim"] | None, Sequence[object]]:
    """Check a batch of texts, with a vector each unless `vectors` is None.

    Returns:
        The vectors as states; and of each query the identity by which a cursor recognises it.

    Raises:
        DimensionMismatch: vectors of another length.
        InvalidRequest: options that do not go together; vectors that are not one a query, or zero.
    """
    states = None
    if vectors is not None:
        states = search_vectors(vectors, dimension)
        if len(states) != len(queries):
            raise InvalidRequest(
                f"{amount(len(queries), 'query')} and {amount(len(states), 'vector')}; give as many"
            )
    chosen.check(queries, vectors=states is not None)
    if states is None:
        return None, queries
    return states, [(query, state.tobytes()) for query, state in zip(queries, states, strict=True)]


def tokens_of(
    collection: State, texts: Sequence[str], state: Snapshot, version: str | None = None
) -> list[QueryTokens]:
    """Tokens of queries, to be matched with those of a state's documents.

    They come from `token_encoder_of` the version; without a version from the collection's encoder.

    Raises:
        InvalidRequest: the documents have none.
    """
    from dsearch.engine.ranking.second_stage import require_tokens

    require_tokens(state)
    encoder = collection.encoder if version is None else token_encoder_of(collection, version)
    raw = collection.query_token_cache.of(encoder, texts)
    return [query_tokens(query, text, state) for query, text in zip(raw, texts, strict=True)]


def token_encoder_of(collection: State, version: str) -> TextEncoder:
    """Return the encoder of a query's tokens: the collection's, which made the documents' tokens.

    A version with a second stage of its own has its own encoder, to whose tokens the stage was fitted; so has
    one whose documents were encoded by it.
    """
    own = collection.has_documents_of(version) or collection.ranking_head(version).second_stage is not None
    return collection.encoder_of(version) if own else collection.encoder


def layer_options(options: SearchOptions, place: PageRequest) -> LayerOptions:
    """Return the options of the layer of a search that begins at this place."""
    return {
        "mode": options.mode,
        "hops": options.hops,
        "hop_strength": options.hop_strength,
        "candidates": place.candidates,
        "depth": place.depth,
        "stages": options.stages,
        "rerank_candidates": options.rerank_candidates,
    }


def _with_mode(options: LayerOptions, mode: Mode) -> LayerOptions:
    changed = options.copy()
    changed["mode"] = mode
    return changed


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Queries of a batch with the same phrases.

    Attributes:
        numbers: their numbers in the batch.
        phrases: phrases that a document must contain and must not; without a text.
        mode: the legs. If phrases leave no word to search for, all documents that they admit get equal
            weights: the dense leg, asked with zeros.
        texts: their words, without quotes, signs and excluded phrases; None where no word is left.
    """

    numbers: list[int]
    phrases: ParsedQuery
    mode: Mode
    texts: list[str] | None


def group_queries(
    queries: Sequence[str], mode: Mode, tokenizer: Tokenizer | None, *, operators: bool = True
) -> list[QueryGroup]:
    """Group a batch, in the order of the first query of each group.

    Args:
        queries: the batch.
        mode: the requested legs.
        tokenizer: decides what is a word to BM25; with None everything is.
        operators: whether quotes and signs in a text restrict.
    """
    parsed = [parse_query(query) if operators else ParsedQuery(query) for query in queries]
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], bool], list[int]] = {}
    for number, query in enumerate(parsed):
        worded = not query.constrained or _has_words(query.text, mode, tokenizer)
        groups.setdefault((query.required, query.excluded, worded), []).append(number)
    return [
        QueryGroup(
            numbers=numbers,
            phrases=ParsedQuery("", required, excluded),
            mode=mode if worded else "dense",
            texts=[parsed[number].text for number in numbers] if worded else None,
        )
        for (required, excluded, worded), numbers in groups.items()
    ]


def states_of(
    groups: Sequence[QueryGroup],
    encode: Callable[[list[str]], Float[Any, "worded encoder_dim"]],
    dimension: int,
) -> Float[Any, "batch encoder_dim"]:
    """Encode the words of all queries in one call of the encoder; zeros without words."""
    if len(groups) == 1 and groups[0].texts is not None:  # in the order of the batch
        return encode(groups[0].texts)
    texts = {
        number: text
        for group in groups
        if group.texts is not None
        for number, text in zip(group.numbers, group.texts, strict=True)
    }
    shape = (sum(len(group.numbers) for group in groups), dimension)
    if not texts:
        return np.zeros(shape, np.float32)
    of_words = encode(list(texts.values()))
    states = zeros(shape, of_words)
    states[list(texts)] = of_words
    return states


def _has_words(text: str, mode: Mode, tokenizer: Tokenizer | None) -> bool:
    if not text.strip():
        return False
    return mode != "keyword" or tokenizer is None or bool(next(tokenizer.terms([text])))
