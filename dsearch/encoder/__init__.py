"""Texts in, unit vectors out: sentence-transformers models, their identity, and batching by length."""

from __future__ import annotations

from dsearch.encoder.backends import Backend
from dsearch.encoder.choice import Choice
from dsearch.encoder.encoder import Encoder, TextEncoder
from dsearch.encoder.identity import EncoderIdentity
from dsearch.encoder.load import CACHE_NAME, choice_of, load_encoder
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
    "CACHE_NAME",
    "DEFAULT_ENCODER",
    "Backend",
    "Choice",
    "Encoder",
    "EncoderChange",
    "EncoderIdentity",
    "EncoderTraining",
    "LearningEncoder",
    "QueryCache",
    "TextEncoder",
    "TextTokens",
    "TokenCounter",
    "TokenEncoder",
    "TunedEncoder",
    "choice_of",
    "load_encoder",
    "tuned",
    "tuned_identity",
]
