"""Tokens of an encoder: counts, to cut texts that are longer than its window, and ids, to read back texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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
