"""Texts in, unit vectors out: sentence-transformers models, their identity, and batching by length."""

from __future__ import annotations

from .encoder import Encoder, TextEncoder
from .identity import EncoderIdentity
from .query_cache import QueryCache
from .tokens import TokenCounter
from .tuned import EncoderChange, EncoderTraining, LearningEncoder, TunedEncoder, tuned, tuned_identity
from .weights import DEFAULT_ENCODER

__all__ = [
    "DEFAULT_ENCODER",
    "Encoder",
    "EncoderChange",
    "EncoderIdentity",
    "EncoderTraining",
    "LearningEncoder",
    "QueryCache",
    "TextEncoder",
    "TokenCounter",
    "TunedEncoder",
    "tuned",
    "tuned_identity",
]
