"""Tokens of an encoder: counts, to cut texts that are longer than its window, and ids, to read back texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

# Model input → attribute of a tokenized text.
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


@runtime_checkable
class TokenCounter(Protocol):
    """An encoder that counts tokens. Long documents are cut for those alone; others cut texts off."""

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each document, its marks at both ends and the prompt included, none cut off."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids of an encoder.

    Attributes:
        first: id before every text; None without.
        last: id after every text; None without.
        size: number of ids.
        decode: function from ids to their text, special tokens left out.
    """

    first: int | None
    last: int | None
    size: int
    decode: Callable[[Sequence[int]], str]


def padded_arrays(
    encoded: Sequence[Any], names: Sequence[str], padding: int, width: int
) -> dict[str, Int64[np.ndarray, "texts tokens"]]:
    """Arrays of tokenized texts by name, of which shorter ones end in padding."""
    arrays: dict[str, Int64[np.ndarray, "texts tokens"]] = {}
    for name in names:
        arrays[name] = np.full((len(encoded), width), padding if name == "input_ids" else 0, np.int64)
        for place, encoding in enumerate(encoded):
            arrays[name][place, : len(encoding)] = getattr(encoding, FIELDS[name])
    return arrays
