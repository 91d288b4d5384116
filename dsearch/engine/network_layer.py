"""`open_layer`: open a collection on disk as a layer of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack
from weakref import finalize

from dsearch.engine.engine import SearchEngine
from dsearch.engine.indexing.leases import Lease
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.layer import SearchLayer


def open_layer(
    home: Path | str, name: str, *, model: str | None = None, **options: Unpack[LayerOptions]
) -> SearchLayer:
    """Open a collection's present state as a layer of a network, with a head of its own to train.

    Reads the home without its lock and loads no encoder. Later writes are not seen.

    Args:
        home: folder of the collections.
        name: name or alias of the collection.
        model: version whose head the layer starts from; the live one when None.
        options: as for `SearchLayer`.

    Raises:
        CollectionNotFound, ModelNotFound, CorruptData.
        InvalidRequest: options out of range.
    """
    with SearchEngine(home, readonly=True) as engine:
        collection = engine.collection(name)
        version = collection.live_model if model is None else model
        layer = collection.layer_over(collection.snapshot_for(version), collection.head(version), options)
        lease = Lease(layer.snapshot.generation.folder)  # the collection's own ends with this block
    finalize(layer, lease.release)
    return layer
