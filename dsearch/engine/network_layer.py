"""`open_layer`: open a collection as a layer of a network, with a head of its own to train.

    layer = open_layer("index", "papers", encoder_training="lora")
    layer(layer.query_states(texts), texts).context          # any loss of it reaches head and query encoder

The layer knows the collection that it came from, so that it can follow later writes (`refresh`), name the
documents at positions (`ids`) and be compared with another version (`with_model`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, Unpack
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import EncoderTraining, LearningEncoder, TextEncoder
from dsearch.engine.collection import Collection
from dsearch.engine.engine import SearchEngine
from dsearch.engine.indexing.leases import Lease
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.second_stage import QueryTokens
from dsearch.engine.search.queries import tokens_of
from dsearch.errors import Conflict

OpenCollection = Callable[[], AbstractContextManager[Collection]]
EncoderMethod = Literal["lora", "all"]


class CollectionLayer(SearchLayer):
    """A `SearchLayer` over the present state of a collection; made by `open_layer`.

    Args:
        source: opens the collection.
        model: version whose head, and whose query encoder, the layer starts from.
        encoder_training: None keeps the query encoder; "lora" or "all" adds a copy of it that learns.
        options: as for `SearchLayer`.

    Attributes:
        version: that version.
        encoder: the query encoder that learns; None without `encoder_training`.

    Raises:
        ModelNotFound, CorruptData.
        Conflict: `encoder_training` for a version with a query encoder of its own.
    """

    def __init__(
        self,
        source: OpenCollection,
        model: str | None = None,
        encoder_training: EncoderMethod | None = None,
        **options: Unpack[LayerOptions],
    ):
        with source() as collection:
            version = collection.live_model if model is None else model
            learning = None
            if encoder_training is not None:
                learning = _learning_encoder(collection, version, encoder_training)
            snapshot, own = collection.layer_parts(collection.snapshot_for(version), options)
            lease = Lease(snapshot.generation.folder)  # the collection's own ends with its engine
            head = copy.deepcopy(collection.head(version)).train()
        if options.get("stages") == 2 and head.second_stage is None and snapshot.token_dims is not None:
            head.second_stage = SecondStage(snapshot.token_dims)
        super().__init__(snapshot, head, **own)
        self.version = version
        self.encoder: LearningEncoder | None = learning
        self._source, self._options = source, options
        self._frozen: list[TextEncoder] = []  # in a list: as a submodule it would be a parameter to train
        self._release = finalize(self, lease.release)

    def query_states(self, texts: Sequence[str]) -> Float[Tensor, "batch encoder_dim"]:
        """Encode queries: by the encoder that learns, in the graph; otherwise without gradients.

        Raises:
            EncoderMismatch, EncoderUnavailable.
        """
        if self.encoder is not None:
            return self.encoder.embed(list(texts), "query")
        if not self._frozen:
            with self._source() as collection:
                self._frozen.append(collection.encoder_of(self.version))
        return torch.as_tensor(self._frozen[0].encode_queries(list(texts)), device=self.device)

    def query_tokens(self, texts: Sequence[str]) -> list[QueryTokens]:
        """The tokens of queries, for a second stage: `layer(states, texts, tokens=…)`; without gradients.

        Raises:
            InvalidRequest: the documents have none.
            EncoderUnavailable.
        """
        with self._source() as collection:
            return tokens_of(collection, texts, self.snapshot)

    @property
    def device(self) -> torch.device:
        """Device of the head, and so of the layer."""
        return next(self.head.parameters()).device

    def refresh(self) -> None:
        """Search the documents as they are now: later steps see what was added and deleted meanwhile.

        Positions change their meaning: take `ids` before, or use outputs of the same step alone.
        """
        with self._source() as collection:
            collection.catch_up()
            snapshot, own = collection.layer_parts(collection.snapshot_for(self.version), self._options)
            if snapshot.generation is not self.snapshot.generation:
                lease = Lease(snapshot.generation.folder)
                self._release()
                self._release = finalize(self, lease.release)
        self.snapshot, match = snapshot, own.get("score")
        self.match = match if isinstance(match, FieldMatch) else None

    def ids(self, positions: Int64[np.ndarray, "batch candidates"]) -> list[list[str]]:
        """Ids of the documents at positions of the present snapshot; "" at −1."""
        with self._source() as collection:
            return collection.ids_at(self.snapshot, positions)

    def with_model(self, version: str) -> CollectionLayer:
        """Open the same search by another version on the same device; encoder and score do not learn.

        Raises:
            ModelNotFound, CorruptData.
        """
        options = self._options.copy()
        if isinstance(options.get("score"), torch.nn.Module):
            del options["score"]  # the version has its own
        return CollectionLayer(self._source, version, **options).to(self.device)


def open_layer(
    home: Path | str | SearchEngine,
    name: str,
    *,
    model: str | None = None,
    encoder_training: EncoderMethod | None = None,
    **options: Unpack[LayerOptions],
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
        options: as for `SearchLayer`.

    Raises:
        CollectionNotFound, ModelNotFound, CorruptData.
        Conflict: `encoder_training` for a version with a query encoder of its own.
        InvalidRequest: options out of range; an encoder that cannot be trained.
        MissingExtra: "lora" without `peft`.
    """
    return CollectionLayer(partial(_opened, home, name), model, encoder_training, **options)


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
