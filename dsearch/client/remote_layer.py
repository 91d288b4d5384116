"""`RemoteSearch`: a collection of a server as a layer of a network, like `SearchLayer` in this process.

    layer = RemoteSearch("http://127.0.0.1:8080", "papers")
    layer(query_states).context.sum().backward()          # reaches query_states

**The gradient needs no second request.** The answer of `attend` includes the derivative of each candidate's
score with respect to the query state (its slope). Everything after the scores is computed here, by the
functions that the server uses, and autograd does the rest:

    raw_h(c) = dense_h(c) + keyword_h(c)         from the server; ∂ raw_h(c) / ∂ state = slope_h(c)
    weights, context, scores                     from raw, temperature, mixture and values, here

Slopes are not enough with several hops, and for the parameters of the head, which are sent along and train
here. The gradient is then a vector-Jacobian product of the server (`vjp`), computed in the state that
answered.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dsearch.attention import pool, with_zero_gradient
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.kernel import Weighing, raw_scores
from dsearch.attention.transforms import NO_GRAPH, checked_states, require_numbers
from dsearch.client.calls import WayToAttend
from dsearch.client.http import Client
from dsearch.client.remote_output import (
    PooledThere,
    RemoteOutput,
    Values,
    candidate_mask,
    empty_output,
    in_sequences,
    pooled_by_head,
    rows_at,
    rows_of_ids,
    tensor_like,
)
from dsearch.client.uploads import head_of_arrays, savable_layer, upload_of
from dsearch.engine.ranking.layer import with_own_parameters
from dsearch.engine.ranking.scores import check_finite_bias, check_texts, texts_of_steps
from dsearch.engine.ranking.scoring import under_autocast_of_now
from dsearch.errors import Conflict, Gone, InvalidRequest
from dsearch.products import in_full_precision
from dsearch.results import Attention

if TYPE_CHECKING:
    from dsearch.client.local.engine import LocalEngine
    from dsearch.encoder import LearningEncoder, TextEncoder


class RemoteSearch(nn.Module):
    """Attention of query states over the documents of a collection that a server has.

    Computes in the precision of its query states: float64 where they are, otherwise float32.

    Args:
        server: its address, or a client of it (or an engine of this process, for the same path without one).
        collection: the collection's name.
        model: the version that answers; the live one when None.
        train_head: whether the head's parameters are parameters of this layer, too. Their gradients are
            computed by the server, of the version that answers: what an optimizer makes of them counts from
            `sync` or `publish` on.
        encoder: encoder of `query_states`: the server's, loaded here.
        encoder_training: method by which a copy of it learns, "lora" or "all"; None: it does not.
        options: mode, candidates, hops, score, pooling, …, as for `SearchLayer`.

    Attributes:
        version: version that training starts from; None for whichever is live.
        encoder: the query encoder that learns; None without `encoder_training`.
        bias: [positions], added to the documents' scores as that of `SearchLayer`; a parameter learns. None:
            none. It is sent with every request.

    Raises:
        CollectionNotFound, ModelNotFound, Unavailable: with `train_head`, which asks for the head.
        InvalidRequest: `encoder_training` without an encoder, or of one that cannot be trained.
    """

    @torch.inference_mode(False)  # tensors of inference never learn
    def __init__(
        self,
        server: str | Client | LocalEngine,
        collection: str,
        *,
        model: str | None = None,
        train_head: bool = False,
        encoder: TextEncoder | None = None,
        encoder_training: Literal["lora", "all"] | None = None,
        **options: Unpack[WayToAttend],
    ):
        super().__init__()
        if encoder_training is not None and encoder is None:
            raise InvalidRequest("encoder_training without an encoder; give encoder=dsearch.Encoder.load(…)")
        self.client = Client(server) if isinstance(server, str) else server
        self.collection, self.model, self.options = collection, model, options
        self.head: Head | None = None
        self.bias: Tensor | None = None
        if train_head:
            self.model = model or self.client.models(collection).live
            tensors = self.client.head(collection, self.model)
            self.head = head_of_arrays(tensors).train()
            self._own = _references(self.head)
        self.version = self.model
        self._draft: str | None = None
        self._handed_in: Mapping[str, Any] = {}  # the head of the draft
        self._projections: dict[str, Any] = {}  # W_O of versions that answered
        self._frozen = [encoder]  # in a list: as a submodule it would be a parameter to train
        self.encoder: LearningEncoder | None = None
        if encoder is not None and encoder_training is not None:
            from dsearch.encoder import EncoderTraining, LearningEncoder

            self.encoder = LearningEncoder(encoder, EncoderTraining(encoder_training))

    def forward(
        self,
        query_states: Float[Tensor, "*queries encoder_dim"],
        texts: Sequence[Any] | None = None,
        *,
        values: Values | None = None,
        with_texts: bool = False,
        embed: object = None,
        tokens: object = None,
    ) -> RemoteOutput:
        """Search with each query state, and with its text for the keyword leg.

        Args:
            query_states: what the encoder gives for a query, or what another network gives in its place;
                [batch, encoder_dim], or sequences of them, [batch, steps, encoder_dim]; zeros for padding,
                which then scores 0 with every document.
            texts: the words of each query, "" for none; without them the keyword leg finds and adds nothing.
                Lists of them for sequences.
            values: what is pooled; W_V e_d when None. A field of the documents by name; a function of the
                candidates' ids, whose result is [queries, candidates, value_dim], of which the rows behind a
                query's last candidate do not count; or a row for each position of the state that answers.
                Gradients reach the last two. Over all documents a function's values are pooled by the
                weights of those that are listed, and the rows are sent with the request.
            with_texts: whether the output has the candidates' texts.
            embed, tokens: of a layer of this process (`dsearch.open_layer`) alone.

        Raises:
            DimensionMismatch: states of another length than the embeddings; fewer values than positions; a
                bias of another length.
            InvalidRequest: states with numbers that are not finite, or longer than a million; another number
                of texts than states; mode "keyword" without texts; a bias that is not finite; `embed` or
                `tokens`.
            Gone: in the backward through `vjp`: the collection was written to too often, or rebuilt, since
                the forward. Repeat the step.
        """
        query_states = checked_states(query_states)
        if embed is not None or tokens is not None:
            raise InvalidRequest(_HERE_ALONE)
        shape = query_states.shape[:-1]
        if len(shape) == 2:
            texts = texts_of_steps(texts, *shape)
            flat = self.forward(query_states.flatten(0, 1), texts, values=values, with_texts=with_texts)
            return in_sequences(flat, shape)
        kind = query_states.device.type
        if callable(values):
            values = under_autocast_of_now(values, kind)
        with in_full_precision(kind):
            states = query_states if query_states.dtype == torch.float64 else query_states.float()
            return self._answered(states, texts, values, with_texts)

    def _answered(
        self,
        states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None,
        values: Values | None,
        with_texts: bool,
    ) -> RemoteOutput:
        mode: Any = self.options.get("mode", "hybrid")
        check_finite_bias(self.bias)
        self._require_own_tensors()
        check_texts(len(states), texts, mode, self.options.get("match_field"))
        if isinstance(values, np.ndarray):
            values = torch.as_tensor(values)
        if not len(states):
            return empty_output(states, self.version)
        pooled = PooledThere.of(values, everywhere=self.options.get("over") == "all")
        attention = self._attend(states, texts, pooled, with_texts)
        assert attention.positions is not None
        mask = candidate_mask(attention, states)
        dense, keyword = tensor_like(attention.dense, states), tensor_like(attention.keyword, states)
        if attention.slopes is None or attention.values is None:
            head_weights = tensor_like(attention.head_weights, states)
            context, weights, scores = self._as_answered(attention, texts, states, pooled)
        else:
            dense = DenseByServer.apply(states, dense, tensor_like(attention.slopes, states))
            if self.bias is not None:  # it is in these scores: what is added is 0, and has its gradient
                own = rows_at(self.bias.unsqueeze(1), attention.positions).squeeze(-1).to(dense)
                dense = dense + (own - own.detach()).unsqueeze(1)
            raw, mixture = raw_scores(dense, keyword), tensor_like(attention.mixture, states)
            pooling = self.options.get("pooling", "soft")
            weighing = Weighing(raw.shape[1], mixture, attention.temperature, pooling)
            head_weights, weights, _ = weighing.weights(raw, mask)
            scores = weighing.scores(raw, mask)
            context = pooled_by_head(head_weights, mixture, tensor_like(attention.values, states))
        if values is not None and pooled.nothing:
            if isinstance(values, Tensor):
                rows = rows_at(values, attention.positions)
            else:
                rows = rows_of_ids(values, attention.ids, mask)
            context = pool(weights.unsqueeze(1), rows.to(weights)).squeeze(1)
        scores = scores.masked_fill(~mask, -torch.inf)
        context, weights = (
            part if part.requires_grad else with_zero_gradient(part, states) for part in (context, weights)
        )
        return RemoteOutput(
            context,
            weights,
            attention.ids,
            scores,
            dense,
            keyword,
            head_weights,
            attention.stamp,
            attention.positions,
            attention.texts,
            None if attention.candidates is None else np.array(attention.candidates),
            None if attention.covered_mass is None else tensor_like(attention.covered_mass, states),
            None if attention.memory is None else tensor_like(attention.memory, states),
            None if values is not None else self._projected(attention, context),
        )

    def _projected(
        self, attention: Attention, context: Float[Tensor, "batch value_dim"]
    ) -> Float[Tensor, "batch output_dim"] | None:
        """The answer's output projection, with its gradient; W_O is asked for where no head trains here."""
        if attention.output is None:
            return None
        answered = tensor_like(attention.output, context)
        if not context.requires_grad:
            return answered
        if self.head is not None and self.head.output is not None:
            own = self.head.output
            projected = torch.nn.functional.linear(context, own.weight.to(context), own.bias.to(context))
        else:
            version = attention.stamp.model
            if version not in self._projections:
                self._projections[version] = self.client.head(self.collection, version)["output.weight"]
            projected = context @ tensor_like(self._projections[version], context).mT
        return answered + (projected - projected.detach())

    def query_states(self, texts: Sequence[str]) -> Float[Tensor, "batch encoder_dim"]:
        """Encode queries here: by the encoder that learns, in the graph; otherwise without gradients.

        Raises:
            InvalidRequest: a layer without an encoder.
        """
        if self.encoder is not None:
            return self.encoder.embed(list(texts), "query")
        if (encoder := self._frozen[0]) is None:
            raise InvalidRequest("query_states() of a layer without an encoder; make it with encoder=…")
        device = None if self.head is None else next(self.head.parameters()).device
        with in_full_precision("cpu"):
            return torch.as_tensor(encoder.encode_queries(list(texts)), device=device)

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteSearch:
        """A layer with parameters of its own by the same client; handed in as this one was."""
        other = with_own_parameters(self, memo)
        if other.head is not None:
            other._own = _references(other.head)
        if other._draft is not None:
            other._hand_in()
        return other

    def __prepare_scriptable__(self) -> NoReturn:
        raise InvalidRequest(NO_GRAPH)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a RemoteSearch is not pickled, since a connection is part of it: keep layer.state_dict(), which "
            "is the head, and open it by dsearch.RemoteSearch(address, collection), in a spawned process "
            "(a worker of a DataLoader) when it first needs the layer"
        )

    def with_model(self, version: str) -> RemoteSearch:
        """The same search by another version of the server, without parameters to train.

        Raises:
            Conflict: the version has a query encoder of its own, which only the server has.
        """
        records = {model.version: model.record for model in self.client.models(self.collection).models}
        if self._frozen[0] is not None and "query_encoder" in records.get(version, {}):
            raise Conflict(
                f"model {version} has a query encoder of its own, which only the server has; give judgements "
                "as evidence"
            )
        return self._of(version)

    def as_version(self, version: str) -> RemoteSearch:
        """The same search by the version that this layer became, with the encoder that learned here."""
        layer = self._of(version)
        layer.encoder = self.encoder
        return layer

    def _of(self, version: str) -> RemoteSearch:
        return RemoteSearch(
            self.client, self.collection, model=version, encoder=self._frozen[0], **self.options
        )

    def sync(self) -> None:
        """Hand the head in, so that from now on the server answers this layer by it; call it after a step.

        The server keeps it as a draft in memory, which answers nobody else and takes the place of the one of
        the last `sync`; no version is made. A layer without a head does nothing.

        Raises:
            InvalidRequest: numbers that are not finite.
        """
        if self.head is None:
            return
        self._handed_in = upload_of(self, None, None).head
        self._hand_in()

    def release(self) -> None:
        """Forget the draft of `sync`, and answer by the version that training started from."""
        draft, self._draft, self._handed_in = self._draft, None, {}
        if draft is not None:
            self.client.drop_draft(self.collection, draft)

    def _require_own_tensors(self) -> None:
        """Refuse a head with other parameters than those that the server has gradients of."""
        if self.head is None:
            return
        require_numbers(self.head.log_temperature)
        present = dict(self.head.named_parameters())
        if others := present.keys() - self._own.keys():
            raise InvalidRequest(
                f"a head with {min(others)!r}, of which a server computes no gradient; remove the "
                "parametrization (or pruning), or train a layer of dsearch.open_layer"
            )
        own = {name: of() for name, of in self._own.items()}
        lent = [name for name, at in present.items() if own[name] is not None and own[name] is not at]
        if lent:
            raise InvalidRequest(
                f"a head with other tensors for this call, such as {lent[0]!r} (functional_call): a server "
                "answers by the head that it was handed in; load them (load_state_dict) and call sync(), or "
                "use a layer of dsearch.open_layer"
            )
        if any(at is None for at in own.values()):  # they were replaced for good
            self._own = _references(self.head)

    def _hand_in(self) -> None:
        """Make a draft of the head of the last `sync`."""
        self._draft = self.client.draft_head(self.collection, self._handed_in, parent=self.version).draft

    def publish(self, record: dict[str, Any] | None = None, *, promote: bool = False) -> str:
        """Hand the head in as a new version, and search with it from now on; its name.

        Args:
            record: what should be known of it later, as JSON.
            promote: whether it answers everybody from now on.

        Raises:
            InvalidRequest: a layer without `train_head` or with a bias, or numbers that are not finite.
        """
        if self.head is None:
            raise InvalidRequest("publish() of a layer without a head; make it with train_head=True")
        tensors = upload_of(savable_layer(self), None, None).head
        added = self.client.add_model(self.collection, tensors, parent=self.version, record=record).model
        self.release()
        self.model = self.version = added
        if promote:
            self.client.promote(self.collection, added)
        return added

    def _attend(
        self, states: Tensor, texts: Sequence[str] | None, pooled: PooledThere, with_texts: bool
    ) -> Attention:
        needed = ["parts", "positions", *(["texts"] if with_texts else [])]
        learns = states.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if torch.is_grad_enabled() and learns and self.head is None:
            needed += ["slopes", "values"]
        ask = partial(
            self.client.attend,
            self.collection,
            None if texts is None else list(texts),
            vectors=states.detach().cpu().numpy(),
            include=needed,  # type: ignore[arg-type]
            **pooled.options(),
        )
        try:
            return ask(**self.request_of(states))
        except Gone:
            if self._draft is None:
                raise
            self._draft = None  # expired, or of before the server was restarted
            self._hand_in()
            return ask(**self.request_of(states))

    def _as_answered(
        self, attention: Attention, texts: Sequence[str] | None, states: Tensor, pooled: PooledThere
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Context, weights and scores, with the server's gradients where there are any to be wanted."""
        parameters = [tensor for tensor in (self.bias, pooled.table) if tensor is not None]
        if self.head is not None:
            parameters += self.head.parameters()
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (states, *parameters)):
            return AttentionByServer.apply(self, attention, texts, pooled, states, *parameters)  # pyright: ignore
        return (
            tensor_like(attention.context, states),
            tensor_like(attention.weights, states),
            tensor_like(attention.scores, states),
        )

    def request_of(self, states: Tensor) -> Any:
        """The options of a request for these states."""
        dtype = "float64" if states.dtype == torch.float64 else "float32"
        named = {"model": self.model} if self._draft is None else {"draft": self._draft}
        bias = {} if self.bias is None else {"bias": self.bias.detach().double().cpu().numpy()}
        return {**self.options, **named, **bias, "dtype": dtype}


def _references(head: Head) -> dict[str, weakref.ref[nn.Parameter]]:
    """A head's parameters by name, which this does not keep alive."""
    return {name: weakref.ref(parameter) for name, parameter in head.named_parameters()}


_HERE_ALONE = (
    "embed and tokens are of a layer of this process: a server cannot call a function here, and sends no "
    "tokens of documents; use dsearch.open_layer(home, name), or leave them out"
)


class AnsweringLayer(Protocol):
    """The parts of a `RemoteSearch` for its backward."""

    client: Any
    collection: str
    head: nn.Module | None
    bias: Tensor | None

    def request_of(self, states: Tensor) -> Any:
        """The options of a request for these states."""
        ...


class DenseByServer(torch.autograd.Function):
    """The dense scores as the server has computed them, with their slopes as derivative."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, dense: Tensor, slopes: Tensor) -> Tensor:
        """The scores."""
        ctx.save_for_backward(slopes)
        return dense.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Σ_h Σ_c ∂L/∂dense_h(c) · slope_h(c)."""
        (slopes,) = ctx.saved_tensors
        with in_full_precision(slopes.device.type):
            return torch.einsum("bhc,bhcd->bd", gradient, slopes), None, None


class AttentionByServer(torch.autograd.Function):
    """Server's answer, with gradients that the server computes on demand."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: AnsweringLayer,
        attention: Attention,
        texts: Sequence[str] | None,
        pooled: PooledThere,
        states: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Context, weights and scores."""
        ctx.layer, ctx.attention, ctx.texts, ctx.pooled = layer, attention, texts, pooled
        ctx.parameters = parameters
        ctx.save_for_backward(states)
        return (
            tensor_like(attention.context, states),
            tensor_like(attention.weights, states),
            tensor_like(attention.scores, states),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """One `vjp` for the states and all parameters."""
        layer, attention, parameters = ctx.layer, ctx.attention, list(ctx.parameters)
        (states,) = ctx.saved_tensors
        context, *of_candidates = (gradient.cpu().numpy() for gradient in gradients)
        counts = [len(line) for line in attention.ids]
        weights, scores = (
            [row[:count] for row, count in zip(rows, counts, strict=True)] for rows in of_candidates
        )
        answered = layer.client.vjp(
            layer.collection,
            None if ctx.texts is None else list(ctx.texts),
            vectors=states.cpu().numpy(),
            context=context,
            weights=weights,
            scores=scores,
            head=layer.head is not None,
            **ctx.pooled.options(),
            **{
                **layer.request_of(states),
                "model": None,
                "draft": attention.draft,
                "stamp": attention.stamp,
            },
        )
        of_parameters = list[Tensor]()
        if layer.bias is not None:
            of_parameters.append(tensor_like(answered.bias, parameters.pop(0)))
        if ctx.pooled.table is not None:
            of_parameters.append(tensor_like(answered.table, parameters.pop(0)))
        if layer.head is not None:
            names = [name for name, _ in layer.head.named_parameters()]
            of_parameters += [
                tensor_like(answered.head[name], parameter)
                for name, parameter in zip(names, parameters, strict=True)
            ]
        return None, None, None, None, tensor_like(answered.states, states), *of_parameters
