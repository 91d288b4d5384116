"""Bounds of agreement at their edges, and the texts that are compared."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.encoder.automatic.agreement import agrees, cosines, documents, queries, states_agreement
from dsearch.encoder.token_states import TextTokens


def tokens(*of: float, at: int = 0) -> TextTokens:
    """Tokens with these cosines to (1, 0)."""
    rows = np.array([[one, (1 - min(one, 1.0) ** 2) ** 0.5] for one in of], np.float32).reshape(-1, 2)
    spans = np.array([[n + at, n + 1] for n in range(len(of))], np.int64).reshape(-1, 2)
    return TextTokens(rows, spans)


def measured(*texts: TextTokens) -> dict[str, object]:
    return states_agreement([tokens(*[1.0] * len(of.states)) for of in texts], texts)


def test_embeddings_agree_in_every_text() -> None:
    assert agrees(np.array([1, 0.9991], np.float32))
    assert not agrees(np.array([1, 0.9989], np.float32))
    assert not agrees(np.array([1, np.inf], np.float32))
    assert not agrees(np.array([1, np.nan], np.float32))


def test_cosines_are_of_pairs() -> None:
    some, others = np.eye(2, 3, dtype=np.float32), np.array([[0, 1, 0], [0, 0.5, 0]], np.float32)
    assert cosines(some, others).tolist() == [0.0, 0.5]


STATES = [
    ([tokens(1.0, 0.99981), tokens()], 0.99981, 0.999905, True),
    ([tokens(1.0, 0.99979)], 0.99979, 0.999895, False),  # the mean of a text
    ([tokens(0.9985, *[1.0] * 99)], 0.9985, 0.999985, False),  # a token
    ([tokens(1.0, 1.0), tokens(0.9995)], 0.9995, 0.9995, False),  # the worst text
]


@pytest.mark.parametrize(("texts", "least", "mean", "agree"), STATES)
def test_states_agree_in_tokens_and_texts(
    texts: list[TextTokens], least: float, mean: float, agree: bool
) -> None:
    found = measured(*texts)
    assert found["least"] == pytest.approx(least, abs=1e-5)
    assert found["mean"] == pytest.approx(mean, abs=1e-5)
    assert found["agrees"] is agree


def test_tokens_at_other_places_do_not_agree() -> None:
    found = states_agreement([tokens(1.0, 1.0)], [tokens(1.0, 1.0, at=1)])
    assert found == {"least": 0.0, "mean": 0.0, "agrees": False}
    with pytest.raises(ValueError, match="shorter"):
        states_agreement([tokens(1.0)], [])


def test_texts_are_of_many_lengths_and_always_the_same() -> None:
    assert len(queries()) == len(documents()) == len(set(queries())) == 40
    assert queries() is queries()
    assert all(0 < len(text) <= 200 and "\n" not in text for text in queries())
    lengths = [len(text) for text in documents()]
    assert min(lengths) < 100
    assert max(lengths) > 1500
    assert max(lengths[:16]) <= 400
    assert max(lengths[16:32]) <= 900
