"""A query memory as a file of a model's folder, or of a training's on its way to the serving process.

Safetensors: the buffers of the memory, embeddings in half precision, `setting` (γ, τ, c); the texts of the
queries as JSON in the metadata, if they may be kept.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine.models.tensors import metadata_of
from dsearch.errors import CorruptData, InvalidRequest

MEMORY_NAME = "memory.safetensors"
_HALVES = ("states", "embeddings")


def memory_bytes(memory: QueryMemory) -> bytes:
    """A memory as the content of its file."""
    tensors = {name: buffer.detach().cpu().contiguous() for name, buffer in memory.named_buffers()}
    tensors |= {name: tensors[name].half() for name in _HALVES}
    setting = [memory.strength.item(), memory.log_temperature.exp().item(), memory.null_level.item()]
    tensors["setting"] = torch.tensor(setting, dtype=torch.float64)
    return save(tensors, None if memory.texts is None else {"texts": json.dumps(memory.texts)})


def memory_from_bytes(content: bytes) -> QueryMemory:
    """Read the output of `memory_bytes`.

    Raises:
        CorruptData: `content` is not such an output.
    """
    try:
        texts = metadata_of(content).get("texts")
        arrays = {name: tensor.numpy() for name, tensor in load(content).items()}
        strength, temperature, null_level = arrays.pop("setting").tolist()
        return QueryMemory(
            **{**arrays, **{name: arrays[name].astype(np.float32) for name in _HALVES}},
            texts=None if texts is None else json.loads(texts),
            strength=strength,
            temperature=temperature,
            null_level=null_level,
        )
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, InvalidRequest) as error:
        raise CorruptData(f"{MEMORY_NAME} cannot be read ({error}); train again") from error


def memory_record(memory: QueryMemory) -> dict[str, Any]:
    """Sizes and setting of a memory, as JSON."""
    return {
        "queries": len(memory),
        "documents": memory.documents,
        "strength": round(memory.strength.item(), 6),
        "temperature": round(memory.log_temperature.exp().item(), 6),
        "null_level": round(memory.null_level.item(), 6),
    }
