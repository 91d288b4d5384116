"""Texts in, unit vectors out: sentence-transformers models, their identity, and batching by length."""

from __future__ import annotations

from .backends import Backend
from .choice import Choice
from .encoder import Encoder, TextEncoder
from .identity import EncoderIdentity
from .load import CACHE_NAME, choice_of, load_encoder
from .query_cache import QueryCache
from .tokens import TokenCounter
from .tuned import EncoderChange, EncoderTraining, LearningEncoder, TunedEncoder, tuned, tuned_identity
from .weights import DEFAULT_ENCODER

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
    "TokenCounter",
    "TunedEncoder",
    "choice_of",
    "load_encoder",
    "tuned",
    "tuned_identity",
]
