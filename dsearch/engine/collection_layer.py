"""`open_layer`: open a collection as a layer of a network, with a head of its own to train.

    layer = open_layer("index", "papers", encoder_training="lora")
    layer(layer.query_states(texts), texts).context          # any loss of it reaches head and query encoder

The layer knows the collection that it came from, so that it can follow later writes (`refresh`), name the
documents at positions (`ids`) and be compared with another version (`with_model`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import with_zero_gradient
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.attention.transforms import checked_states
from dsearch.encoder import EncoderTraining, LearningEncoder, TextEncoder
from dsearch.engine.collection import Collection
from dsearch.engine.engine import SearchEngine
from dsearch.engine.indexing.leases import Lease
from dsearch.engine.options import LayerOptions, OpenedLayerOptions
from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput, in_sequences
from dsearch.engine.ranking.resident import Resident, ResidentEmbeddings
from dsearch.engine.ranking.scores import texts_of_steps
from dsearch.engine.ranking.scoring import EmbedRows
from dsearch.engine.ranking.second_stage import require_tokens
from dsearch.engine.search.attend import Values, pooled_rows, texts_at, with_field, without_padding
from dsearch.engine.search.queries import tokens_of
from dsearch.engine.snapshot import NONE, QueryTokens, Snapshot, query_tokens_in_graph
from dsearch.errors import Conflict, InvalidRequest
from dsearch.products import in_full_precision

OpenCollection = Callable[[], AbstractContextManager[Collection]]
EncoderMethod = Literal["lora", "all"]


class CollectionLayer(SearchLayer):
    """A `SearchLayer` over the present state of a collection; made by `open_layer`.

    Args:
        source: opens the collection.
        model: version whose head, and whose query encoder, the layer starts from.
        encoder_training: None keeps the query encoder; "lora" or "all" adds a copy of it that learns.
        resident: None reads embeddings on the host; "float32" or "bfloat16" keeps them all on the layer's
            device (ranking/resident.py).
        options: as for `SearchLayer`, and filter: condition on the documents' metadata.

    Attributes:
        version: that version.
        encoder: the query encoder that learns; None without `encoder_training`.

    Raises:
        ModelNotFound, CorruptData.
        Conflict: `encoder_training` for a version with a query encoder of its own.
    """

    @torch.inference_mode(False)  # tensors of inference never learn
    def __init__(
        self,
        source: OpenCollection,
        model: str | None = None,
        encoder_training: EncoderMethod | None = None,
        resident: Resident | None = None,
        **options: Unpack[OpenedLayerOptions],
    ):
        with source() as collection:
            version = collection.live_model if model is None else model
            learning = None
            if encoder_training is not None:
                learning = _learning_encoder(collection, version, encoder_training)
            snapshot, own = _layer_parts(collection, collection.snapshot_for(version), options)
            lease = Lease(snapshot.generation.folder)  # the collection's own ends with its engine
            release = finalize(self, lease.release)  # also of a layer that is refused below
            origin = _Origin(collection)
            head = copy.deepcopy(collection.head(version)).train()
        if options.get("stages") == 2 and head.second_stage is None and snapshot.tokens is not None:
            head.second_stage = SecondStage()
        super().__init__(snapshot, head, **own)
        self.version = version
        self.encoder: LearningEncoder | None = learning
        self._source, self._options, self._origin = source, options, origin
        self._frozen: list[TextEncoder] = []  # in a list: as a submodule it would be a parameter to train
        self._release = release
        self._resident: Resident | None = resident
        if resident is not None:
            self.resident = ResidentEmbeddings(self.snapshot, resident, self.device)

    def forward(
        self,
        query_states: Float[Tensor, "*queries encoder_dim"],
        texts: Sequence[Any] | None = None,
        *,
        embed: EmbedRows | None = None,
        values: Values | None = None,
        tokens: Sequence[QueryTokens] | None = None,
        with_texts: bool = False,
    ) -> SearchOutput:
        """Search with each query state; as `SearchLayer.forward`, and with the ids of what it attends to.

        Args:
            query_states: [batch, encoder_dim], or sequences of them, [batch, steps, encoder_dim]; zeros for
                padding, which then scores 0 with every document.
            texts: the words of each query, "" for none; lists of them for sequences.
            embed: as for `SearchLayer`.
            values: what is pooled: a row for each position; a field of the documents by name ("price",
                "value"); or a function of the candidates' ids, whose result is [queries, candidates,
                value_dim]. Over all documents a function's values are pooled by the weights of those
                that are listed.
            tokens: as for `SearchLayer`.
            with_texts: whether the output has the candidates' texts.

        Raises:
            InvalidRequest, DimensionMismatch: as `SearchLayer.forward`; a field that a document lacks.
        """
        query_states = checked_states(query_states)
        shape = query_states.shape[:-1]
        if len(shape) == 2:
            texts = texts_of_steps(texts, *shape)
            flat = query_states.flatten(0, 1)
            flat_output = self.forward(
                flat, texts, embed=embed, values=values, tokens=tokens, with_texts=with_texts
            )
            return in_sequences(flat_output, shape)
        attend = partial(super().forward, query_states, texts, embed=embed, tokens=tokens)
        ids_of = partial(self._listed, self.snapshot)
        if isinstance(values, str):
            with self._collection() as collection:
                output = with_field(collection, self, values, lambda rows: attend(values=rows))
        elif values is None or isinstance(values, Tensor | np.ndarray):
            output = attend(values=None if values is None else torch.as_tensor(values))
        else:
            if not callable(values):
                raise InvalidRequest(
                    f"values of type {type(values).__name__}; give a field's name, a function of ids, or a "
                    "tensor"
                )
            output = attend()
            output = pooled_rows(output, values(ids_of(output.positions)))
        output = output._replace(ids_of=ids_of)
        nothing = bool((output.positions == NONE).all())  # then no term of the graph has a state in it
        if self.pooling != "soft" or self.match is not None or nothing:
            output = output._replace(
                context=with_zero_gradient(output.context, query_states),
                weights=with_zero_gradient(output.weights, query_states),
            )
        if not with_texts:
            return output
        with self._collection() as collection:
            return output._replace(texts=texts_at(collection, self.snapshot, output.positions))

    def __deepcopy__(self, memo: dict[int, Any]) -> CollectionLayer:
        """As `SearchLayer`; the copy holds the files of its documents by itself."""
        other = super().__deepcopy__(memo)
        lease = Lease(other.snapshot.generation.folder)
        other._release = finalize(other, lease.release)
        return other

    def query_states(self, texts: Sequence[str]) -> Float[Tensor, "batch encoder_dim"]:
        """Encode queries: by the encoder that learns, in the graph; otherwise without gradients.

        Raises:
            EncoderMismatch, EncoderUnavailable.
        """
        if self.encoder is not None:
            return self.encoder.embed(list(texts), "query")
        if not self._frozen:
            with self._collection() as collection:
                self._frozen.append(collection.encoder_of(self.version))
        with in_full_precision(self.device.type):
            return torch.as_tensor(self._frozen[0].encode_queries(list(texts)), device=self.device)

    def query_tokens(self, texts: Sequence[str]) -> list[QueryTokens]:
        """The tokens of queries, for a second stage: `layer(states, texts, tokens=…)`.

        By the encoder that learns, in the graph; otherwise without gradients.

        Raises:
            InvalidRequest: the documents have none.
            EncoderUnavailable.
        """
        if self.encoder is not None and texts:
            require_tokens(self.snapshot)
            batch = self.encoder.embed_tokens(list(texts), "query")
            parts = zip(batch.states, batch.spans, texts, strict=True)
            return [query_tokens_in_graph(*part, self.snapshot) for part in parts]
        with self._collection() as collection:
            return tokens_of(collection, texts, self.snapshot, self.version)

    @property
    def device(self) -> torch.device:
        """Device of the head, and so of the layer."""
        return next(self.head.parameters()).device

    @torch.inference_mode(False)
    def refresh(self) -> None:
        """Search the documents as they are now: later steps see what was added and deleted meanwhile.

        Positions change their meaning: take `ids` before, or use outputs of the same step alone.
        """
        with self._collection() as collection:
            collection.catch_up()
            snapshot, own = _layer_parts(collection, collection.snapshot_for(self.version), self._options)
            if snapshot.generation is not self.snapshot.generation:
                lease = Lease(snapshot.generation.folder)
                self._release()
                self._release = finalize(self, lease.release)
        self.snapshot, match = snapshot, own.get("score")
        self.match = match if isinstance(match, FieldMatch) else None
        if self._resident is not None:
            self.resident = None  # the old ones make room first
            self.resident = ResidentEmbeddings(self.snapshot, self._resident, self.device)

    @torch.inference_mode(False)
    def with_documents(self, state: Snapshot) -> CollectionLayer:
        """The same layer, with the same parameters, over other embeddings of the collection's documents."""
        other = copy.copy(self)
        other.__dict__["_modules"] = {**self._modules}
        with self._collection() as collection:
            other.snapshot, own = _layer_parts(collection, state, self._options)
        match = own.get("score")
        other.match = match if isinstance(match, FieldMatch) else None
        if self._resident is not None:
            other.resident = ResidentEmbeddings(other.snapshot, self._resident, self.device)
        return other

    def ids(self, positions: Int64[np.ndarray, "batch candidates"]) -> list[list[str]]:
        """Ids of the documents at positions of the present snapshot; "" at −1."""
        with self._collection() as collection:
            return collection.ids_at(self.snapshot, positions)

    def _listed(
        self, snapshot: Snapshot, positions: Int64[np.ndarray, "batch candidates"]
    ) -> list[list[str]]:
        with self._collection() as collection:
            return without_padding(collection.ids_at(snapshot, positions))

    @contextmanager
    def _collection(self) -> Generator[Collection]:
        """Open the collection that the layer's documents are of.

        Raises:
            Conflict: another one has its name now, whose rows would be taken for these.
        """
        with self._source() as collection:
            self._origin.require(collection)
            yield collection

    def with_model(self, version: str) -> CollectionLayer:
        """Open the same search by another version on the same device; encoder and score do not learn.

        Raises:
            ModelNotFound, CorruptData.
        """
        options = self._options.copy()
        if isinstance(options.get("score"), torch.nn.Module):
            del options["score"]  # the version has its own
        return CollectionLayer(self._source, version, resident=self._resident, **options).to(self.device)


class _Origin:
    """The folder of a layer's collection. It is held open, so no folder that is made later has its inode."""

    def __init__(self, collection: Collection):
        file = os.open(collection.store.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._status = os.fstat(file)
        finalize(self, os.close, file)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Origin:
        return self

    def require(self, collection: Collection) -> None:
        """Refuse a collection that has another folder; raises Conflict."""
        with suppress(OSError):
            if os.path.samestat(self._status, os.stat(collection.store.path)):
                return
        raise Conflict(
            f"collection {collection.name!r} is another one than when this layer was opened: it was made "
            "anew or migrated, or an alias was moved; open the layer again"
        )


def open_layer(
    home: Path | str | SearchEngine,
    name: str,
    *,
    model: str | None = None,
    encoder_training: EncoderMethod | None = None,
    resident: Resident | None = None,
    **options: Unpack[OpenedLayerOptions],
) -> CollectionLayer:
    """Open a collection's present state as a layer of a network, with a head of its own to train.

    A folder is read without its lock. Later writes are seen from `CollectionLayer.refresh` on. An encoder is
    loaded by `encoder_training`, or by the first `query_states`.

    Args:
        home: folder of the collections, or an open engine, which must stay open.
        name: name or alias of the collection.
        model: version whose head the layer starts from; the live one when None.
        encoder_training: method by which a copy of the query encoder learns, "lora" or "all"; None: it does
            not.
        resident: "float32" or "bfloat16" keeps all embeddings on the layer's device, with 4 or 2 bytes a
            number; None reads those of candidates on the host.
        options: as for `SearchLayer`, and filter: condition on the documents' metadata.

    Raises:
        CollectionNotFound, ModelNotFound, CorruptData.
        Conflict: `encoder_training` for a version with a query encoder of its own.
        InvalidRequest: options out of range; an encoder that cannot be trained.
        MissingExtra: "lora" without `peft`.
    """
    source = partial(_opened, home, name)
    return CollectionLayer(source, model, encoder_training, resident, **options)


def _layer_parts(
    collection: Collection, snapshot: Snapshot, options: OpenedLayerOptions
) -> tuple[Snapshot, dict[str, Any]]:
    """The snapshot of the documents that a layer attends to, and its own options."""
    own: dict[str, Any] = {**options}
    snapshot = collection.filtered(snapshot, own.pop("filter", None))
    return collection.layer_parts(snapshot, LayerOptions(**own))


def _opened(home: Path | str | SearchEngine, name: str) -> AbstractContextManager[Collection]:
    if isinstance(home, SearchEngine):
        return nullcontext(home.collection(name))
    return _opened_folder(home, name)


@contextmanager
def _opened_folder(home: Path | str, name: str) -> Generator[Collection]:
    with SearchEngine(home, readonly=True) as engine:
        yield engine.collection(name)


def _learning_encoder(collection: Collection, version: str, method: EncoderMethod) -> LearningEncoder:
    """A copy of the collection's encoder that learns.

    Raises:
        Conflict: the version has a query encoder of its own; changes are stored against the collection's.
    """
    if "query_encoder" in collection.store.model(version).record:
        raise Conflict(
            f"model {version} has a query encoder of its own, and a change is stored against the "
            "collection's; open the layer with model='v0', or without encoder_training"
        )
    return LearningEncoder(collection.encoder, EncoderTraining(method))
