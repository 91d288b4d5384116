"""The derived artefacts of one generation: dense keys (FAISS) and keyword scores (BM25). NumPy, never torch."""

from __future__ import annotations

from dsearch.index.dense import DENSE_KINDS, DenseIndex, set_thread_count
from dsearch.index.keyword import KeywordIndex
from dsearch.index.tokenize import TokenizedTexts, Tokenizer

__all__ = ["DENSE_KINDS", "DenseIndex", "KeywordIndex", "TokenizedTexts", "Tokenizer", "set_thread_count"]
