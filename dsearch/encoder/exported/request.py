"""Requests to export an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsearch.encoder.weights import Weights

if TYPE_CHECKING:
    from dsearch.encoder.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Exporting:
    """Request to export an encoder.

    Attributes:
        name: the user's name of the encoder.
        weights: its files.
        max_tokens: limit above which texts are cut; None for the model's own limit. The exported model
            accepts any length.
        cache: folder of the exports.
        load: function that loads the torch encoder in float32.
        trained: description of a trained change of it (automatic/trained.py); None for an encoder by name.
    """

    name: str
    weights: Weights
    max_tokens: int | None
    cache: Path
    load: Callable[[], Encoder]
    trained: str | None = None


class ExportOrigin(NamedTuple):
    """Export of an encoder, made or to be made; trained changes of it are exported alike.

    Attributes:
        request: the encoder.
        dtype: required precision, or None.
        batch_size: texts per run.
    """

    request: Exporting
    dtype: str | None
    batch_size: int
