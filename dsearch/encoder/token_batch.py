"""`token_batch`: embeddings and token states of a batch as part of torch's graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.encoder.token_states import inside_text
from dsearch.errors import EncoderUnavailable, amount


class TokenBatch(NamedTuple):
    """A batch of texts in the graph.

    Attributes:
        embeddings: of unit length.
        states: of each text's tokens, of unit length.
        spans: [start, end) of each in characters of the text.
    """

    embeddings: Float[Tensor, "texts encoder_dim"]
    states: list[Float[Tensor, "tokens encoder_dim"]]
    spans: list[Int64[np.ndarray, "tokens 2"]]


def token_batch(model: Any, features: dict[str, Any], marked: Any, prompt: str) -> TokenBatch:
    """Run a sentence-transformers model once; gradients reach its weights.

    Args:
        model: the model.
        features: what it takes.
        marked: its tokenizer's output for the same texts, with offsets and marks of special tokens.
        prompt: text in front of each, whose tokens are left out.

    Raises:
        EncoderUnavailable: the model gives no states, or others than one a token.
    """
    output = model(features)
    states = states_of(output, features)
    if states is None:
        raise EncoderUnavailable(
            "this encoder has no state for each token, so there is no second stage with it; use a "
            "transformer with a pooling layer, such as the default encoder"
        )
    of_texts: list[Tensor] = []
    places: list[np.ndarray] = []
    masks = features["attention_mask"].bool().cpu().numpy()
    for row, mask in enumerate(masks):
        offsets = np.array(marked["offset_mapping"][row], np.int64).reshape(-1, 2)
        special = np.array(marked["special_tokens_mask"][row], bool)
        if len(offsets) != int(mask.sum()):
            raise EncoderUnavailable(
                f"this encoder's tokenizer gives {amount(len(offsets), 'token')} for a text and "
                f"{int(mask.sum())} for "
                "it in a batch; there is no second stage with it"
            )
        inside = inside_text(offsets, special, prompt)
        at = torch.as_tensor(np.flatnonzero(mask)[inside]).to(states.device)
        of_texts.append(nn.functional.normalize(states[row, at].float(), dim=-1))
        places.append(offsets[inside] - len(prompt))
    embeddings = nn.functional.normalize(output["sentence_embedding"].float(), dim=-1)
    return TokenBatch(embeddings, of_texts, places)


def states_of(
    output: dict[str, Any], features: dict[str, Any]
) -> Float[Tensor, "texts tokens encoder_dim"] | None:
    """The state of each token in a model's output; None if there is not one a token."""
    states = output.get("token_embeddings")
    return None if states is None or states.shape[:2] != features["input_ids"].shape else states
