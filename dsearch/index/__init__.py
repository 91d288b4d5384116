"""The derived artefacts of one generation: keys (FAISS) and keyword scores (BM25). NumPy, never torch."""

from __future__ import annotations

from dsearch.index.dense import DENSE_KINDS, DenseIndex, DenseKind, set_thread_count
from dsearch.index.generation import Generation, remove_unfinished
from dsearch.index.keyword import KeywordIndex
from dsearch.index.manifest import FORMAT, Manifest, manifest_schema
from dsearch.index.tokenize import TokenizedTexts, Tokenizer

__all__ = [
    "DENSE_KINDS",
    "FORMAT",
    "DenseIndex",
    "DenseKind",
    "Generation",
    "KeywordIndex",
    "Manifest",
    "TokenizedTexts",
    "Tokenizer",
    "manifest_schema",
    "remove_unfinished",
    "set_thread_count",
]
