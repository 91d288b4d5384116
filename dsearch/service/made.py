"""What a training made, on its way in a run's folder from its process to the one that serves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load, save

from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, EncodedDocuments, head_bytes, head_from_bytes
from dsearch.engine.lessons import Lessons
from dsearch.service.encoded_documents import read_encoded, write_encoded

if TYPE_CHECKING:
    from dsearch.attention.head import Head
    from dsearch.training import Trained, TrainedValues, Tuned

_HEAD = "head.safetensors"
_ENCODER = "encoder.safetensors"
_LESSONS = "lessons.safetensors"


@dataclass(frozen=True, slots=True)
class Made:
    """The parts of a model, as `Collection.add_model` takes them."""

    head: Head
    encoder: EncoderChange | None
    documents: EncodedDocuments | None
    lessons: Lessons | None


def write_made(folder: Path, trained: Trained | TrainedValues | Tuned) -> dict[str, Any]:
    """Write the parts into a run's folder; what is told of them, as JSON: which there are."""
    encoder = getattr(trained, "encoder", None)  # heads for values, and tuned ones, have none of these
    documents, lessons = getattr(trained, "documents", None), getattr(trained, "lessons", None)
    (folder / _HEAD).write_bytes(head_bytes(trained.head))
    if encoder is not None:
        (folder / _ENCODER).write_bytes(save(dict(encoder.tensors)))
    if documents is not None:
        write_encoded(folder, documents)
    if lessons is not None:
        (folder / _LESSONS).write_bytes(lessons.to_bytes())
    return {
        "encoder": None if encoder is None else asdict(encoder.training),
        "documents": documents is not None,
        "lessons": lessons is not None,
    }


def read_made(folder: Path, told: dict[str, Any], collection: Collection) -> Made:
    """What `write_made` wrote; of documents those that are still there.

    Args:
        folder: the run's.
        told: what `write_made` gave.
        collection: that the model is for.
    """
    head, _ = head_from_bytes((folder / _HEAD).read_bytes(), collection.store.dimension)
    change = None
    if told["encoder"] is not None:
        change = EncoderChange(EncoderTraining(**told["encoder"]), load((folder / _ENCODER).read_bytes()))
    documents = read_encoded(folder, collection.snapshot) if told["documents"] else None
    lessons = Lessons.from_bytes((folder / _LESSONS).read_bytes()) if told["lessons"] else None
    return Made(head, change, documents, lessons)
