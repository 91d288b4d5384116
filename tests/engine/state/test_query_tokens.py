"""Tokens of queries are kept from the pass that gave the embeddings, however many were asked for at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from support.fakes import HashingEncoder

from dsearch.encoder import TextTokens
from dsearch.engine.state import query_tokens
from dsearch.engine.state.query_tokens import KeptQueryTokens

MOST = query_tokens._MOST  # pyright: ignore[reportPrivateUsage]


class CountingEncoder(HashingEncoder):
    texts = 0

    def encode_tokens(
        self, texts: Sequence[str], role: str = "document"
    ) -> tuple[np.ndarray, list[TextTokens]]:
        assert role == "query"
        self.texts += len(texts)
        return super().encode_tokens(texts, role)


def test_a_batch_of_many_queries_is_encoded_once() -> None:
    kept, encoder = KeptQueryTokens(), CountingEncoder()
    many = [f"apple {number}" for number in range(MOST + 44)]
    kept.encode(encoder, many)
    tokens = kept.of(encoder, many)
    assert encoder.texts == len(many)
    expected = HashingEncoder().encode_tokens(many[:1], "query")[1][0]
    assert np.array_equal(tokens[0].states, expected.states)


def test_the_latest_are_kept_when_others_follow() -> None:
    kept, encoder = KeptQueryTokens(), CountingEncoder()
    kept.encode(encoder, [f"apple {number}" for number in range(MOST + 44)])
    kept.encode(encoder, ["bread"])
    assert len(kept) == MOST
    kept.of(encoder, ["bread", f"apple {MOST + 43}"])
    assert encoder.texts == MOST + 45
    kept.of(encoder, ["apple 0", "apple 0"])
    assert encoder.texts == MOST + 46
