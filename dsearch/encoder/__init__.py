"""Texts in, unit vectors out: sentence-transformers models, their identity, and batching by length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.encoder.automatic import AutomaticEncoder
from dsearch.encoder.backends import Backend
from dsearch.encoder.load import (
    EncoderInUse,
    EncoderSource,
    encoder_cache,
    encoder_in_use,
    load_encoder,
    prompts_of,
)
from dsearch.encoder.text_encoder import EncoderIdentity, QueryCache, TextEncoder
from dsearch.encoder.tokens import TextTokens, TokenCounter, TokenEncoder, WordEncoder, WordTokens
from dsearch.encoder.weights import DEFAULT_ENCODER
from dsearch.lazy_names import lazy_names

if TYPE_CHECKING:
    from dsearch.encoder.encoder import Encoder
    from dsearch.encoder.learning import (
        EncoderChange,
        EncoderTraining,
        LearningEncoder,
        TunedEncoder,
        tuned,
        tuned_identity,
    )

# By torch, which an exported encoder does not need: loaded when first asked for.
_HOMES = {
    "Encoder": "dsearch.encoder.encoder",
    "EncoderChange": "dsearch.encoder.learning",
    "EncoderTraining": "dsearch.encoder.learning",
    "LearningEncoder": "dsearch.encoder.learning",
    "TunedEncoder": "dsearch.encoder.learning",
    "tuned": "dsearch.encoder.learning",
    "tuned_identity": "dsearch.encoder.learning",
}

__all__ = [
    "DEFAULT_ENCODER",
    "AutomaticEncoder",
    "Backend",
    "Encoder",
    "EncoderChange",
    "EncoderIdentity",
    "EncoderInUse",
    "EncoderSource",
    "EncoderTraining",
    "LearningEncoder",
    "QueryCache",
    "TextEncoder",
    "TextTokens",
    "TokenCounter",
    "TokenEncoder",
    "TunedEncoder",
    "WordEncoder",
    "WordTokens",
    "encoder_cache",
    "encoder_in_use",
    "load_encoder",
    "prompts_of",
    "tuned",
    "tuned_identity",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
