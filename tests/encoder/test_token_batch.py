"""Embeddings and token states of a batch in the graph, by a model of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.encoder.encoder import states_of, token_batch
from dsearch.encoder.tokens import inside_text
from dsearch.errors import EncoderUnavailable

PROMPT = "q: "
# "ab c" and "d" behind the prompt: marks at both ends, tokens of the prompt, padding at the left.
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]])
MARKED = {
    "offset_mapping": [[(0, 0), (0, 1), (1, 2), (3, 5), (6, 7), (0, 0)], [(0, 0), (0, 2), (3, 4), (0, 0)]],
    "special_tokens_mask": [[1, 0, 0, 0, 0, 1], [1, 0, 0, 1]],
}
FEATURES = {"attention_mask": MASK, "input_ids": MASK.clone()}


def states() -> torch.Tensor:
    return torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()


def output_of(tokens: torch.Tensor | None) -> dict[str, Any]:
    sentences = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]])
    return {"sentence_embedding": sentences} | ({} if tokens is None else {"token_embeddings": tokens})


def test_tokens_of_the_text_itself_are_given_with_their_places() -> None:
    tokens = states()
    batch = token_batch(lambda features: output_of(tokens), FEATURES, MARKED, PROMPT)
    torch.testing.assert_close(batch.embeddings, torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]))
    assert [spans.tolist() for spans in batch.spans] == [[[0, 2], [3, 4]], [[0, 1]]]
    unit = torch.nn.functional.normalize(tokens, dim=-1)
    torch.testing.assert_close(batch.states[0], unit[0, [3, 4]])
    torch.testing.assert_close(batch.states[1], unit[1, [3]])  # behind its padding
    batch.states[1].sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.abs().sum(-1).ne(0).tolist() == [
        [False] * 6,
        [False, False, False, True, False, False],
    ]


def test_without_a_prompt_every_token_with_characters_counts() -> None:
    batch = token_batch(lambda features: output_of(states()), FEATURES, MARKED, "")
    assert [spans.tolist() for spans in batch.spans] == [[[0, 1], [1, 2], [3, 5], [6, 7]], [[0, 2], [3, 4]]]


def test_what_is_of_the_prompt_in_part_or_without_characters_is_not_of_the_text() -> None:
    spans = np.array([(0, 3), (2, 4), (3, 3), (3, 5), (5, 5), (5, 6), (6, 7)])
    special = np.array([False] * 6 + [True])
    assert inside_text(spans, special, PROMPT).tolist() == [False, False, False, True, False, True, False]
    assert inside_text(spans, special, "").tolist() == [True, True, False, True, False, True, False]


def test_half_precision_is_given_in_single() -> None:
    batch = token_batch(lambda features: output_of(states().half()), FEATURES, MARKED, PROMPT)
    assert {one.dtype for one in (batch.embeddings, *batch.states)} == {torch.float32}


@pytest.mark.parametrize("tokens", [None, torch.zeros(2, 5, 3)], ids=["none", "others than one a token"])
def test_a_model_without_a_state_for_each_token_is_refused(tokens: torch.Tensor | None) -> None:
    assert states_of(output_of(tokens), FEATURES) is None
    with pytest.raises(EncoderUnavailable, match="no state for each token, so there is no second stage"):
        token_batch(lambda features: output_of(tokens), FEATURES, MARKED, PROMPT)


def test_a_tokenizer_that_counts_otherwise_is_refused() -> None:
    marked = {name: [rows[0], rows[1][:-1]] for name, rows in MARKED.items()}
    with pytest.raises(EncoderUnavailable, match="gives 3 tokens for a text and 4 for it in a batch"):
        token_batch(lambda features: output_of(states()), FEATURES, marked, PROMPT)


def test_a_text_without_tokens_has_none() -> None:
    marked = {"offset_mapping": [[(0, 0)]], "special_tokens_mask": [[1]]}
    features = {"attention_mask": MASK[:1, :1], "input_ids": MASK[:1, :1]}
    output = {"sentence_embedding": torch.ones(1, 3), "token_embeddings": torch.ones(1, 1, 3)}
    batch = token_batch(lambda features: output, features, marked, PROMPT)
    assert batch.states[0].shape == (0, 3)
    assert np.array_equal(batch.spans[0], np.zeros((0, 2)))
