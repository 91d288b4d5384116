"""Heads as bytes (safetensors), written by one process and read by another that does not trust it.

The shapes identify the kind of head: `query_delta` [1, D, D] is a head with one query projection; `query_out`
[heads, D, rank] with `query_in` [heads, rank, D] is a low-rank one; with `query_bias` [heads, rank] in
addition it has a hidden layer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from safetensors import SafetensorError

from dsearch.errors import Conflict, DimensionMismatch, InvalidRequest, amount
from dsearch.index import K1, B, checked_weighting
from dsearch.store.sqlite.digest import canonical_json

if TYPE_CHECKING:
    from torch import Tensor

    from dsearch.attention.retrieval.head import Head
    from dsearch.encoder import EncoderChange

Content = TypeVar("Content", bytes, Path)

MAX_HEADS = 64
MAX_DIMENSIONS = 8  # of a tensor: weights of heads and encoders have up to four
MAX_RECORD_DEPTH = 64
MAX_HEADER_BYTES = 32 * 1024 * 1024  # of a file with a request, which is parsed in memory
_TEMPERATURES = (1e-6, 1e6)


def head_bytes(head: Head) -> bytes:
    """A head's tensors as safetensors."""
    from safetensors.torch import save

    return save(head_tensors(head))


def head_tensors(head: Head) -> dict[str, Tensor]:
    """A head's tensors by name, in float32; without its memory, which no other machine may hand in."""
    import torch

    return {name: tensor.to(torch.float32) for name, tensor in head.own_tensors().items()}


def head_from_bytes(content: bytes, encoder_dim: int) -> tuple[Head, dict[str, Any]]:
    """Read a head from safetensors bytes, with the JSON object under `record` in their metadata.

    Args:
        content: what `head_bytes` gives.
        encoder_dim: the length of the embeddings that it is for.

    Raises:
        InvalidRequest: not safetensors, a record that is no JSON object; as `head_from_tensors`.
        DimensionMismatch: a head for embeddings of another length.
    """
    from safetensors.torch import load

    return head_from_tensors(_loaded(load, content), encoder_dim), _record(content)


ENCODER_PREFIX = "query_encoder/"


def parts_from_file(
    path: Path, encoder_dim: int, training: Mapping[str, Any] | None
) -> tuple[Head, EncoderChange | None]:
    """Read a head, and the change of a query encoder under `query_encoder/`, from a safetensors file.

    Args:
        path: both, by name; the file is mapped, and stays as long as they are used.
        encoder_dim: the length of the embeddings that they are for.
        training: fields of `EncoderTraining`; None: there is no change.

    Raises:
        InvalidRequest: as `head_from_bytes`; a change without `training`, or the reverse.
    """
    from safetensors.torch import load_file  # pyright: ignore

    from dsearch.encoder import EncoderChange, EncoderTraining

    tensors = _loaded(lambda place: load_file(place), path)
    changed = {name: tensor for name, tensor in tensors.items() if name.startswith(ENCODER_PREFIX)}
    head = head_from_tensors(
        {name: tensor for name, tensor in tensors.items() if name not in changed}, encoder_dim
    )
    if bool(changed) != (training is not None):
        raise InvalidRequest(
            f"{len(changed)} tensors under {ENCODER_PREFIX!r} and "
            f"{'no' if training is None else 'an'} encoder in the request; give both or neither"
        )
    if training is None:
        return head, None
    for name, tensor in changed.items():
        _require_finite_float32(name, tensor)
    weights = {name.removeprefix(ENCODER_PREFIX): tensor for name, tensor in changed.items()}
    return head, EncoderChange(EncoderTraining(**training), weights)


def _loaded(load: Callable[[Content], dict[str, Tensor]], content: Content) -> dict[str, Tensor]:
    """The tensors of a file, whatever its header says."""
    try:
        return load(content)
    # KeyError: a type that torch does not have. TypeError, RuntimeError: sizes that it has no integers for.
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        problem = str(error).partition("\n")[0][:200]
        raise InvalidRequest(f"not a safetensors file ({problem}); send the tensors of a head") from None


def head_from_tensors(tensors: Mapping[str, Tensor], encoder_dim: int) -> Head:
    """Make a head of these tensors.

    Args:
        tensors: what `head_tensors` gives.
        encoder_dim: the length of the embeddings that it is for.

    Raises:
        InvalidRequest: other names, types or shapes than a head has, numbers that are not finite, a
            temperature outside 1e-6 to 1e6, k1 or b out of range.
        DimensionMismatch: a head for embeddings of another length.
    """

    from dsearch.attention.retrieval.learned_score import score_of_tensors
    from dsearch.attention.retrieval.second_stage import SecondStage

    for name, tensor in tensors.items():
        _require_finite_float32(name, tensor)
    head = _empty_head(tensors, encoder_dim)
    if "bm25" in tensors:
        head.weigh_keywords(K1, B)
    if "second_stage.strength" in tensors:
        head.second_stage = SecondStage()
    learned = (
        (name.removeprefix("score."), tensor) for name, tensor in tensors.items() if name[:6] == "score."
    )
    score = score_of_tensors(learned, encoder_dim)
    if score is not None:
        head.score = score
    if "output.weight" in tensors:
        head.open_output(len(tensors["output.weight"]) if tensors["output.weight"].ndim else 0)
    squeeze = tensors.get("excitation.squeeze")
    if squeeze is not None:
        head.open_excitation(len(squeeze) if squeeze.ndim else 0)
    expected = head.state_dict()
    if wrong := sorted(set(expected) ^ set(tensors)):
        names = ", ".join(expected)
        raise InvalidRequest(f"tensors that a head lacks or does not have: {_listing(wrong)}; send {names}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise InvalidRequest(
                f"tensor {name!r} of shape {list(tensor.shape)}; use {list(expected[name].shape)}"
            )
    low, high = _TEMPERATURES
    temperature = tensors["log_temperature"].exp().item()
    if not low <= temperature <= high:
        raise InvalidRequest(f"a temperature of {temperature:.4g}; use {low:g} to {high:g}")
    head.load_state_dict(tensors)
    if head.keyword_weighting is not None:
        checked_weighting(*head.keyword_weighting)
    return head.eval()


def head_from_numbers(tensors: Mapping[str, object], encoder_dim: int) -> Head:
    """Make a head of arrays or nested lists of numbers, as JSON has them; see `head_from_tensors`.

    Raises:
        InvalidRequest: ragged lists, what is no number, or no head.
        DimensionMismatch: a head for embeddings of another length.
    """
    import torch

    arrays: dict[str, Tensor] = {}
    for name, numbers in tensors.items():
        try:
            with np.errstate(over="ignore"):  # infinite numbers are refused below
                arrays[name] = torch.tensor(np.array(numbers, np.float32))
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"tensor {name[:80]!r} is no array of numbers; send nested lists") from None
    return head_from_tensors(arrays, encoder_dim)


def require_head_alone(version: str, record: Mapping[str, Any]) -> None:
    """Refuse a parent of which the head is only a part: a head of it by itself would answer otherwise.

    Args:
        version: the parent.
        record: what is known of it.

    Raises:
        Conflict: it has a memory, a query encoder or documents of its own.
    """
    if "memory" in record:
        raise Conflict(
            f"model {version} has a memory of judged queries, which a head that is handed in would lose; "
            "train from a version without one, or train on the server"
        )
    if "query_encoder" in record or "documents" in record:
        raise Conflict(
            f"model {version} has a query encoder of its own, which a head that is handed in would lose; "
            "train from a version of scope head, or train on the server"
        )


def _require_finite_float32(name: str, tensor: Tensor) -> None:
    """Refuse another type, numbers that are not finite, and more dimensions than any weight has.

    Torch computes with up to 64 dimensions of some sizes, and a safetensors file may have any.
    """
    import torch

    if tensor.dtype != torch.float32:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise InvalidRequest(f"tensor {name[:80]!r} is {dtype}; send float32")
    if tensor.ndim > MAX_DIMENSIONS:
        raise InvalidRequest(
            f"tensor {name[:80]!r} has {tensor.ndim} dimensions; use at most {MAX_DIMENSIONS}"
        )
    if tensor.numel() and not tensor.isfinite().all():  # of no numbers, the other sizes may be any
        raise InvalidRequest(f"tensor {name[:80]!r} has numbers that are not finite; send finite float32")


def _empty_head(tensors: Mapping[str, Tensor], encoder_dim: int) -> Head:
    from dsearch.attention.retrieval.head import Head

    query = tensors.get("query_delta", tensors.get("query_out"))
    if query is None or query.ndim != 3:
        raise InvalidRequest(
            "no tensor 'query_delta' or 'query_out' of three dimensions; send those of a head"
        )
    if query.shape[1] != encoder_dim:
        raise DimensionMismatch(
            f"a head for embeddings of {query.shape[1]} numbers; this collection's have {encoder_dim}"
        )
    if "query_delta" in tensors:
        return Head(encoder_dim)
    heads, _, rank = query.shape
    if not 1 <= heads <= MAX_HEADS or not 1 <= rank <= encoder_dim:
        raise InvalidRequest(
            f"{amount(heads, 'query head')} of rank {rank}; use 1 to {MAX_HEADS} of rank 1 to {encoder_dim}"
        )
    query_side = "mlp" if "query_bias" in tensors else "low-rank"
    return Head(encoder_dim, heads=heads, rank=rank, query_side=query_side)


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file; ValueError if its header is not JSON."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header.get("__metadata__") or {}  # null is none


def request_of_file(path: Path) -> dict[str, Any]:
    """The JSON object under `request` in the metadata of a safetensors file; empty if there is none.

    Raises:
        InvalidRequest: not safetensors, a header above `MAX_HEADER_BYTES`; a request that is no JSON object.
    """
    from safetensors import safe_open

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if MAX_HEADER_BYTES < size <= path.stat().st_size:
        raise InvalidRequest(
            f"a header of {size} bytes with its request; use at most {MAX_HEADER_BYTES}: fewer judged queries"
        )
    try:
        with safe_open(path, "np") as opened:  # type: ignore[no-untyped-call]
            metadata = cast("dict[str, str]", opened.metadata() or {})  # pyright: ignore
    except (SafetensorError, ValueError, OSError) as error:
        raise InvalidRequest(f"not a safetensors file ({error}); send the tensors of a head") from None
    return _object_of(metadata, "request")


def _record(content: bytes) -> dict[str, Any]:
    """The record in the header; `load` has checked that there is one and that it is JSON."""
    return _object_of(metadata_of(content), "record")


def _object_of(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(name, "{}"))
        _require_shallow(value, MAX_RECORD_DEPTH)
        canonical_json(value).encode("utf-8")  # as it is stored: no NaN, no 1e999, no half of a character
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"a {name} that is no JSON object of at most {MAX_RECORD_DEPTH} levels and finite numbers; leave "
            "it out, or give such an object"
        )
    return cast("dict[str, Any]", value)


def _require_shallow(value: Any, levels: int) -> None:
    """Raise ValueError for JSON nested deeper than `levels`, which could not be written back as JSON."""
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ValueError("nested too deep")
    inner = cast("dict[str, Any] | list[Any]", value)
    for item in inner.values() if isinstance(inner, dict) else inner:
        _require_shallow(item, levels - 1)


def _listing(names: list[str]) -> str:
    listed = ", ".join(repr(name[:40]) for name in names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"
