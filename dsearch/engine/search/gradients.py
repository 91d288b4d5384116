"""Attention with everything that its gradient needs, and the gradient itself, for callers over a wire.

    raw_h(c)   = dense_h(c) + w_h b(c)          what the softmax of head h is over, times its temperature
    slope_h(c) = ∂ dense_h(c) / ∂ state         [encoder_dim]: q_h(state) and the score, differentiated
    ∂L/∂state  = Σ_h Σ_c ∂L/∂raw_h(c) · slope_h(c)

Everything after `raw` is a softmax, a mixture and a sum, which the caller can compute and differentiate. With
the slopes it needs no second request. Gradients of the head, and those through several hops (where every
candidate of a round moves the query of the next), are vector-Jacobian products computed here. Nothing is
stored between requests: a stamp names the state from which both were computed.
"""

from __future__ import annotations

import copy
from collections.abc import Collection as Container
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.engine.indexing.own_vectors import query_vectors
from dsearch.engine.models.tensors import head_from_numbers, require_head_alone
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.scores import ranks_by_inner_product
from dsearch.engine.ranking.scoring import rows_at
from dsearch.engine.search.attend import attention_note, field_rows, require_field, texts_at, with_field
from dsearch.engine.snapshot import NONE
from dsearch.engine.state.state import State
from dsearch.errors import AnswerTooLarge, DimensionMismatch, Gone, InvalidRequest, ModelNotFound, amount
from dsearch.results import Attention, Gradients
from dsearch.types import Stamp

Precision = Literal["float32", "float64"]
Part = Literal["keys", "values", "parts", "slopes", "positions", "texts"]

_TYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class GradientQuery:
    """Queries to attend with, and the state to ask.

    Attributes:
        states: query states; of texts alone the encoder gives them.
        ids: documents whose embeddings are the states, in place of both.
        texts: the words of each query, for the keyword leg; dense search without them.
        model: a version; the stamp's, or the live one, when None.
        stamp: the state to be asked; the present one when None.
        filter: a condition on metadata that documents must meet.
        dtype: what everything is computed in.
        draft: id of a draft head that answers in place of a version, with the documents of its parent.
        owner: who handed the draft in.
        options: mode, candidates, hops, score, pooling, …; see `LayerOptions`.
        field: a field of the documents that is pooled in place of W_V e.
        with_head: tensors of a head that answers in place of the version's, by name.
        bias: a number for each position of the state, added to the scores; see `SearchLayer`.
        table: a row for each position of the state, pooled in place of W_V e.
    """

    states: Float[Tensor, "batch encoder_dim"] | None = None
    texts: Sequence[str] | None = None
    model: str | None = None
    stamp: Stamp | None = None
    filter: object | None = None
    dtype: Precision = "float32"
    draft: str | None = None
    owner: str = ""
    options: LayerOptions = field(default_factory=LayerOptions)
    ids: Sequence[str] | None = None
    field: str | None = None
    with_head: Mapping[str, object] | None = None
    bias: Sequence[float] | Float[np.ndarray, " positions"] | None = None
    table: Sequence[Sequence[float]] | Float[np.ndarray, "positions value_dim"] | None = None


def attention_parts(
    collection: State,
    query: GradientQuery,
    *,
    include: Container[Part] = (),
    largest_bytes: int | None = None,
) -> Attention:
    """Compute attention with everything that a gradient needs.

    Args:
        collection: what is attended to.
        query: the queries.
        include: "keys" and "values" of the candidates; their "positions" and "texts"; "parts" (dense,
            keyword, head_weights); "slopes", which are left out over all documents, and with several hops
            or a memory (use `vjp`).
        largest_bytes: more than this of keys, values and slopes are refused.

    Raises:
        InvalidRequest, DimensionMismatch, ModelNotFound, Gone, Conflict.
    """
    layer, stamp, states, texts = layer_of(collection, query)
    with torch.inference_mode():
        table = _table_of(query)
        output = _attended(collection, layer, states, texts, query.field, table)
        arrays = {"context": output.context, "weights": output.weights, "scores": _finite(output)}
        if output.output is not None:
            arrays["output"] = output.output
        if output.covered_mass is not None:
            arrays["covered_mass"] = output.covered_mass
        if "parts" in include:
            arrays |= {"dense": output.dense, "keyword": output.keyword, "head_weights": output.head_weights}
            if output.memory is not None:
                arrays["memory"] = output.memory
        if largest_bytes is not None:
            _check_size(output, layer.head.heads, include, largest_bytes)
        own_values = query.field is None and table is None
        if "keys" in include or ("values" in include and own_values):
            embeddings = torch.as_tensor(embeddings_found(layer, output)).to(states)
            embeddings = embeddings.squeeze(1) if embeddings.shape[1] == 1 else embeddings
            if "keys" in include:
                arrays["keys"] = layer.head.keys(embeddings)
            if "values" in include and own_values:
                arrays["values"] = layer.head.values(embeddings)
        if "values" in include and query.field is not None:
            rows = field_rows(collection, layer.snapshot, query.field, output.positions)
            arrays["values"] = rows.to(states)
        if "values" in include and table is not None:
            arrays["values"] = rows_at(table, output.positions)
        if "positions" in include:
            arrays["positions"] = torch.as_tensor(output.positions)
        temperature, mixture = float(layer.temperature), layer.head.mixture.numpy()
        if layer.head.excitation is not None:
            arrays["mixtures"] = layer.head.mixture_of(output.folded)
    # A memory moves all candidates with the query: clients need `vjp` for the gradient.
    # And over all documents the weights depend on scores that no answer lists; an excitation on the query.
    alone = layer.hops == 1 and layer.over == "candidates" and layer.head.excitation is None
    if "slopes" in include and alone and output.recalled is None:
        arrays["slopes"] = slopes_of(layer, states, output)
    ids = [[id for id in line if id] for line in collection.ids_at(layer.snapshot, output.positions)]
    numbers: Any = {name: array.contiguous().numpy() for name, array in arrays.items()}
    return Attention(
        ids,
        stamp,
        layer.hops,
        temperature,
        mixture,
        candidates=None if output.documents is None else output.documents.tolist(),
        note=attention_note(layer, output),
        draft=query.draft,
        texts=texts_at(collection, layer.snapshot, output.positions) if "texts" in include else None,
        **numbers,
    )


def vjp(
    collection: State,
    query: GradientQuery,
    *,
    context: Float[np.ndarray, "batch value_dim"] | None = None,
    weights: Sequence[Sequence[float]] | None = None,
    scores: Sequence[Sequence[float]] | None = None,
) -> Gradients:
    """Return the gradients of Σ context · G + Σ weights · g + Σ scores · s by states, head, bias and table.

    Args:
        collection: what was attended to.
        query: as it was for `attention_parts`, with the stamp of its answer.
        context: G, the gradient of the contexts.
        weights: g, a number for each candidate of each query, in the answer's order.
        scores: s, likewise.

    Raises:
        InvalidRequest: none of the three; not one row a query, or not one number a candidate.
        DimensionMismatch: contexts of another length.
        Gone, Conflict: the state is not there any more, or never was.
        ModelNotFound: nor was there ever such a model.
    """
    if context is None and weights is None and scores is None:
        raise InvalidRequest("no gradient given; give that of context, weights or scores")
    layer, stamp, states, texts = layer_of(collection, query)
    states = states.detach().clone().requires_grad_()
    if layer.bias is not None:
        layer.bias.requires_grad_()
    table = _table_of(query)
    if table is not None:
        table.requires_grad_()
    with torch.enable_grad():  # it may be asked in a backward, where there is none
        attended = _attended(collection, layer, states, texts, query.field, table)
    outputs, upstream = list[Tensor](), list[Tensor]()
    if context is not None:
        cotangent = torch.as_tensor(context, dtype=states.dtype)
        if cotangent.shape != attended.context.shape:
            shape, wanted = list(cotangent.shape), list(attended.context.shape)
            raise DimensionMismatch(f"a gradient of contexts of shape {shape}; use {wanted}")
        outputs.append(attended.context)
        upstream.append(cotangent)
    for name, rows in (("weights", weights), ("scores", scores)):
        if rows is not None:
            outputs.append(attended.weights if name == "weights" else attended.scores)
            upstream.append(_padded(name, rows, attended.positions).to(states))
    head = dict(layer.head.named_parameters())
    optional = {
        name: tensor for name, tensor in (("bias", layer.bias), ("table", table)) if tensor is not None
    }
    # A choice of one document and a match are flat: nothing has a gradient then.
    smooth = [at for at, output in enumerate(outputs) if output.requires_grad]
    inputs = [states, *optional.values(), *head.values()]
    gradients = [torch.zeros_like(tensor) for tensor in inputs]
    if smooth:
        gradients = torch.autograd.grad(
            [outputs[at] for at in smooth],
            inputs,
            [upstream[at] for at in smooth],
            allow_unused=True,
            materialize_grads=True,
        )
    of_states, *rest = (gradient.numpy() for gradient in gradients)
    of_optional = {name: rest.pop(0) for name in optional}
    return Gradients(stamp, of_states, dict(zip(head, rest, strict=True)), **of_optional)


def _attended(
    collection: State,
    layer: SearchLayer,
    states: Float[Tensor, "batch encoder_dim"],
    texts: Sequence[str] | None,
    field: str | None,
    table: Tensor | None,
) -> SearchOutput:
    """The layer's output, with the field or the table pooled if there is one."""
    if field is None:
        return layer(states, texts, values=table)
    return with_field(collection, layer, field, lambda values: layer(states, texts, values=values))


def _table_of(query: GradientQuery) -> Float[Tensor, "positions value_dim"] | None:
    """The rows to be pooled.

    Raises:
        InvalidRequest: a field as well, or rows of several lengths.
    """
    if query.table is None:
        return None
    if query.field is not None:
        raise InvalidRequest("field and table; give one of the two")
    if not isinstance(query.table, np.ndarray) and len(widths := {len(row) for row in query.table}) > 1:
        raise InvalidRequest(f"a table with rows of {min(widths)} to {max(widths)} numbers; use one length")
    return torch.tensor(np.asarray(query.table), dtype=_TYPES[query.dtype])


def layer_of(
    collection: State, query: GradientQuery
) -> tuple[SearchLayer, Stamp, Float[Tensor, "batch encoder_dim"], Sequence[str] | None]:
    """Return the layer that answers, its stamp, and its input.

    Raises:
        InvalidRequest, DimensionMismatch, ModelNotFound, Gone, Conflict.
    """
    if query.states is None and query.texts is None and query.ids is None:
        raise InvalidRequest("neither states nor texts nor ids; give at least one")
    model, stamp = query.model, query.stamp
    draft = None if query.draft is None else collection.drafts.get(query.draft, query.owner)
    if draft is not None:
        if (model or draft.parent) != draft.parent or (stamp and stamp.model != draft.parent):
            raise InvalidRequest(
                f"a draft that was made from {draft.parent}, and another model; leave it out"
            )
        model = draft.parent
    if stamp is not None and model not in (None, stamp.model):
        raise InvalidRequest(f"model={model!r} with a stamp of {stamp.model!r}; leave the model out")
    version = model or (collection.live_model if stamp is None else stamp.model)
    snapshot = collection.snapshot_for(version) if stamp is None else collection.snapshot_at(stamp)
    head = (
        draft.head
        if draft is not None
        else _head(collection, version, snapshot.sequence, stamped=stamp is not None)
    )
    if query.with_head is not None:
        if draft is not None:
            raise InvalidRequest("a draft and with_head; give one of the two")
        record = collection.store.model(version).record
        if "memory" in record:
            require_head_alone(version, record)
        head = head_from_numbers(query.with_head, collection.store.dimension)
    if query.dtype == "float64":
        head = copy.deepcopy(head).double()
    mode = query.options.get("mode", "hybrid")
    states = query.states
    if states is not None:
        states = query_vectors(states, collection.store.dimension, padding=True)
    states = states if query.ids is None else collection.states_of(query.ids, snapshot)
    if query.texts is None and mode == "hybrid":
        mode = "dense"
    options: LayerOptions = {**query.options, "mode": mode}
    if states is None:
        require_field(options)
    layer = collection.layer_over(collection.filtered(snapshot, query.filter), head, options)
    if query.bias is not None:
        layer.bias = torch.tensor(np.asarray(query.bias), dtype=_TYPES[query.dtype])
    if states is None:
        assert query.texts is not None
        mode = mode if layer.match is None else "keyword"  # texts are compared, not embeddings
        states = collection.query_states(query.texts, mode, version)
    stamp = Stamp(snapshot.generation.number, version, snapshot.sequence)
    return layer, stamp, states.to(_TYPES[query.dtype]), query.texts


def _head(collection: State, version: str, sequence: int, *, stamped: bool) -> Head:
    try:
        return collection.head(version, sequence)
    except ModelNotFound as error:
        number, next_number = version.removeprefix("v"), collection.store.next_model_version()
        if stamped and number.isdecimal() and int(number) < int(next_number.removeprefix("v")):
            raise Gone(f"model {version} is gone; ask again, without the stamp") from error
        raise


def _check_size(output: SearchOutput, heads: int, include: Container[Part], largest_bytes: int) -> None:
    batch, count = output.positions.shape
    arrays = ("keys" in include) + ("values" in include) + heads * ("slopes" in include)
    size = arrays * batch * count * output.folded.shape[-1] * output.folded.element_size()
    if size > largest_bytes:
        raise AnswerTooLarge(
            f"{amount(batch, 'query')} of {amount(count, 'candidate')} with {amount(arrays, 'array')} of "
            f"vectors: {size} bytes; "
            f"use fewer queries or candidates, at most {largest_bytes} bytes in one answer"
        )


def _finite(output: SearchOutput) -> Float[Tensor, "batch candidates"]:
    """Scores with 0 instead of −∞ behind the last candidate: JSON has no infinity."""
    return output.scores.masked_fill(torch.as_tensor(output.positions == NONE), 0.0)


def _padded(
    name: str, rows: Sequence[Sequence[float]], positions: Int64[np.ndarray, "batch candidates"]
) -> Float[Tensor, "batch candidates"]:
    if len(rows) != len(positions):
        raise InvalidRequest(
            f"{name} of {amount(len(rows), 'query')}, {len(positions)} were asked; give one row each"
        )
    padded = torch.zeros(positions.shape, dtype=torch.float64)
    counts = (positions != NONE).sum(1).tolist()
    for query, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if len(row) != count:
            raise InvalidRequest(
                f"{name}.{query} has {amount(len(row), 'number')}; this query has "
                f"{amount(count, 'candidate')}, give one each, "
                "in the order of the answer"
            )
        padded[query, :count] = torch.as_tensor(row, dtype=torch.float64)
    return padded


_AT_ONCE = 65_536  # candidates: 100 MB a head at 384 numbers


def slopes_of(
    layer: SearchLayer, states: Float[Tensor, "batch encoder_dim"], output: SearchOutput
) -> Float[Tensor, "batch heads candidates encoder_dim"]:
    """Return the derivative of each head's dense score of each candidate with respect to the query state."""
    batch, heads, count = output.dense.shape
    pairs = batch * count
    slopes = states.new_zeros(pairs, heads, states.shape[1])
    if layer.mode != "keyword" and pairs:
        every = embeddings_found(layer, output)
        embeddings = every.transpose(0, 2, 1, 3).reshape(pairs, -1, states.shape[1])
        for start in range(0, pairs, _AT_ONCE):
            part = slice(start, min(start + _AT_ONCE, pairs))
            of_query = torch.arange(part.start, part.stop) // count
            slopes[part] = _of_pairs(layer, states[of_query], torch.as_tensor(embeddings[part]))
    slopes = slopes.reshape(batch, count, heads, states.shape[1]).transpose(1, 2)
    return slopes.masked_fill(torch.as_tensor(output.positions == NONE)[:, None, :, None], 0.0)


def embeddings_found(
    layer: SearchLayer, output: SearchOutput
) -> Float32[np.ndarray, "batch any_heads candidates encoder_dim"]:
    """The embedding by which each candidate was found, by head where heads may have taken different ones."""
    if output.keys is None:
        return layer.snapshot.embeddings(output.positions)[:, None]
    return layer.snapshot.key_embeddings(output.keys)


def _of_pairs(
    layer: SearchLayer,
    states: Float[Tensor, "pairs encoder_dim"],
    embeddings: Float[Tensor, "pairs any_heads encoder_dim"],
) -> Float[Tensor, "pairs heads encoder_dim"]:
    """A state of its own for each candidate: then one backward a head gives all gradients apart."""
    with torch.enable_grad():
        states = states.clone().requires_grad_()
        queries = layer.head.queries(states)
        keys = layer.head.keys(embeddings.to(states)).detach().expand_as(queries)
        if ranks_by_inner_product(layer.score):
            dense = (queries * keys).sum(-1)
        else:
            one_by_one = layer.score(queries.flatten(0, 1).unsqueeze(1), keys.flatten(0, 1).unsqueeze(1))
            dense = one_by_one.reshape(queries.shape[:2])
        if not dense.requires_grad:  # an exact match is a step: flat wherever it has a derivative
            return torch.zeros_like(queries)
        each = [
            torch.autograd.grad(dense[:, head].sum(), states, retain_graph=True)[0]
            for head in range(dense.shape[1])
        ]
    return torch.stack(each, 1)
