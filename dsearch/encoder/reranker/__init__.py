"""Rerankers: models of sentence-transformers that score a query with texts, loaded by name."""

from __future__ import annotations

from dsearch.encoder.reranker.model import TextReranker, load_reranker
from dsearch.encoder.reranker.weights import find_reranker

__all__ = ["TextReranker", "find_reranker", "load_reranker"]
