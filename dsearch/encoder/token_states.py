"""Token states: what an encoder computes for each token of a text, beside the embedding of the whole.

    embedding = pooled states; the states are there in any case, so one pass gives both

`TokenEncoder` is an encoder that hands them out. The torch back end does; the exported ones (ONNX, OpenVINO)
have the embedding as their only output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from dsearch.errors import EncoderUnavailable


class TextTokens(NamedTuple):
    """The tokens of one text, without the marks at both ends and without a prompt.

    Attributes:
        states: of unit length.
        spans: [start, end) of each in characters of the text, ascending.
    """

    states: Float32[np.ndarray, "tokens encoder_dim"]
    spans: Int64[np.ndarray, "tokens 2"]


@runtime_checkable
class TokenEncoder(Protocol):
    """An encoder that also gives the states of tokens."""

    def encode_tokens(
        self, texts: Sequence[str], role: Any = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """Unit embeddings of texts as `encode_documents` or `encode_queries` gives them, and their tokens."""
        ...


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
    states = output.get("token_embeddings")
    if states is None or states.shape[:2] != features["input_ids"].shape:
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
                f"this encoder's tokenizer gives {len(offsets)} tokens for a text and {int(mask.sum())} for "
                "it in a batch; there is no second stage with it"
            )
        inside = ~special & (offsets[:, 0] >= len(prompt)) & (offsets[:, 1] > offsets[:, 0])
        at = torch.as_tensor(np.flatnonzero(mask)[inside]).to(states.device)
        of_texts.append(nn.functional.normalize(states[row, at].float(), dim=-1))
        places.append(offsets[inside] - len(prompt))
    embeddings = nn.functional.normalize(output["sentence_embedding"].float(), dim=-1)
    return TokenBatch(embeddings, of_texts, places)
