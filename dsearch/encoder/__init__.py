"""Texts in, unit vectors out: sentence-transformers models, their identity, and batching by length."""

from __future__ import annotations

from dsearch.encoder.automatic.encoder import AutomaticEncoder
from dsearch.encoder.automatic.folder import encoder_cache
from dsearch.encoder.automatic.source import EncoderInUse, EncoderSource, encoder_in_use
from dsearch.encoder.backends import Backend
from dsearch.encoder.choice import BackendChoice
from dsearch.encoder.encoder import Encoder, TextEncoder
from dsearch.encoder.identity import EncoderIdentity
from dsearch.encoder.load import choice_of, load_encoder
from dsearch.encoder.query_cache import QueryCache
from dsearch.encoder.token_states import TextTokens, TokenEncoder
from dsearch.encoder.tokens import TokenCounter
from dsearch.encoder.tuned import (
    EncoderChange,
    EncoderTraining,
    LearningEncoder,
    TunedEncoder,
    tuned,
    tuned_identity,
)
from dsearch.encoder.weights import DEFAULT_ENCODER

__all__ = [
    "DEFAULT_ENCODER",
    "AutomaticEncoder",
    "Backend",
    "BackendChoice",
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
    "choice_of",
    "encoder_cache",
    "encoder_in_use",
    "load_encoder",
    "tuned",
    "tuned_identity",
]
