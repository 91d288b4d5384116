"""`register`: what was trained becomes a version, and the one that the gate lets through answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsearch.attention.head import Head
from dsearch.encoder import EncoderChange
from dsearch.engine import Collection, EncodedDocuments
from dsearch.engine.lessons import Lessons
from dsearch.training.tune import head_of, setting_from


@dataclass(frozen=True, slots=True)
class Registered:
    """What became of a training.

    Attributes:
        version: what was trained.
        live: the version that answers from now on: that one, or the tuned search that training started from;
            None: what answered before still does.
        reason: why, in words.
    """

    version: str
    live: str | None
    reason: str


def register(
    collection: Collection,
    head: Head,
    record: Mapping[str, Any],
    *,
    passed: bool,
    reason: str,
    promote: bool = True,
    accept: bool = False,
    parent: str = "v0",
    encoder: EncoderChange | None = None,
    documents: EncodedDocuments | None = None,
    lessons: Lessons | None = None,
) -> Registered:
    """Register what was trained; let it answer if it may, else the tuned search of its record if that may.

    Args:
        collection: of the model.
        head: what was trained.
        record: what is known of it, as JSON.
        passed: whether the gate lets it answer.
        reason: what the gate says.
        promote: False: nothing answers that did not before.
        accept: it answers, whatever the gate says.
        parent: the version that training started from.
        encoder: what was changed of the encoder.
        documents: encoded by it.
        lessons: what it was taught, for `explain`.
    """
    record = {**record, "verdict": reason, "accepted": accept}
    version = collection.add_model(
        head, record, parent=parent, encoder=encoder, documents=documents, lessons=lessons
    )
    if accept or (promote and passed):
        collection.promote(version)
        return Registered(version, version, reason)
    tuned = record.get("tuned")
    if not promote or tuned is None or tuned["gate"]["verdict"] != "passed":
        return Registered(version, None, reason)
    why = f"the tuned search does: {tuned['gate']['reason']}"
    live = collection.add_model(
        head_of(setting_from(tuned), collection.store.dimension),
        {**tuned, "verdict": tuned["gate"]["reason"], "accepted": False, "started": version},
        parent=parent,
    )
    collection.promote(live)
    return Registered(version, live, f"{reason}; {why}")
