"""Token counts of texts by an encoder, needed to cut texts that are longer than its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class TokenCounter(Protocol):
    """An encoder that counts tokens. Long documents are cut for those alone; others cut texts off."""

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each document, its marks at both ends and the prompt included, none cut off."""
        ...
