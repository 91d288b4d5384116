"""`open_layer`: a collection as a layer of a network, by whatever answers its calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from dsearch.client.http import Client
from dsearch.client.local.engine import LocalEngine
from dsearch.engine import SearchEngine
from dsearch.engine import open_layer as open_local_layer
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.client.calls import WayToAttend
    from dsearch.client.remote_layer import RemoteSearch
    from dsearch.encoder import TextEncoder
    from dsearch.engine import CollectionLayer
    from dsearch.engine.options import OpenedLayerOptions

EncoderMethod = Literal["lora", "all"]


@overload
def open_layer(
    source: Path | str | SearchEngine | LocalEngine,
    name: str,
    *,
    model: str | None = None,
    encoder_training: EncoderMethod | None = None,
    resident: Literal["float32", "bfloat16"] | None = None,
    **options: Unpack[OpenedLayerOptions],
) -> CollectionLayer: ...
@overload
def open_layer(
    source: Client,
    name: str,
    *,
    model: str | None = None,
    encoder_training: EncoderMethod | None = None,
    encoder: TextEncoder | None = None,
    **options: Unpack[WayToAttend],
) -> RemoteSearch: ...
def open_layer(
    source: Path | str | SearchEngine | LocalEngine | Client,
    name: str,
    *,
    model: str | None = None,
    encoder_training: EncoderMethod | None = None,
    resident: Literal["float32", "bfloat16"] | None = None,
    encoder: TextEncoder | None = None,
    **options: Any,
) -> CollectionLayer | RemoteSearch:
    """Open a collection's present state as a layer of a network, with a head of its own to train.

    A folder is read without its lock. Later writes are seen from `CollectionLayer.refresh` on. An encoder is
    loaded by `encoder_training`, or by the first `query_states`. Of a client the layer is a `RemoteSearch`,
    whose scores and gradients the server computes.

    Args:
        source: folder of the collections; an open engine, or what `dsearch.open` gives, which must stay open;
            or a `dsearch.Client`.
        name: name or alias of the collection.
        model: version whose head the layer starts from; the live one when None.
        encoder_training: method by which a copy of the query encoder learns, "lora" or "all"; None: it does
            not.
        resident: "float32" or "bfloat16" keeps all embeddings on the layer's device, with 4 or 2 bytes a
            number; None reads those of candidates on the host. Not of a client.
        encoder: the server's encoder, loaded here, of a client only.
        options: as for `SearchLayer`, and filter: condition on the documents' metadata.

    Raises:
        CollectionNotFound, ModelNotFound, CorruptData, Unavailable.
        Conflict: `encoder_training` for a version with a query encoder of its own.
        InvalidRequest: options out of range; an encoder that cannot be trained; none of these sources.
        MissingExtra: "lora" without `peft`.
    """
    if isinstance(source, Client):
        if resident is not None:
            raise InvalidRequest(
                f"resident={resident!r} with a client; the server has the embeddings: leave it out"
            )
        from dsearch.client.remote_layer import RemoteSearch

        return RemoteSearch(
            source,
            name,
            model=model,
            train_head=True,
            encoder=encoder,
            encoder_training=encoder_training,
            **options,
        )
    if encoder is not None:
        raise InvalidRequest("encoder is for a client; a folder or engine has its own: leave it out")
    if isinstance(source, LocalEngine):
        source = source.engine
    if not isinstance(source, SearchEngine | str | Path):
        raise InvalidRequest(
            f"{type(source).__name__} is no source of a layer; give a folder, what dsearch.open gives, or a "
            "dsearch.Client"
        )
    return open_local_layer(
        source, name, model=model, encoder_training=encoder_training, resident=resident, **options
    )
