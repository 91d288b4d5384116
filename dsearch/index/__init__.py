"""Derived artefacts of one generation: keys (FAISS) and keyword scores (BM25). Uses NumPy, never torch."""

from __future__ import annotations

from dsearch.index.build import remove_unfinished
from dsearch.index.dense.index import DenseIndex
from dsearch.index.dense.kinds import AUTO, BOUNDS, DENSE_KINDS, DenseKind
from dsearch.index.dense.tuning import IndexMeasurement, build_tuned, tuned
from dsearch.index.generation import Generation
from dsearch.index.keyword.data import checked_weighting
from dsearch.index.keyword.fresh_texts import TokenizedTexts
from dsearch.index.keyword.index import K1, B, KeywordIndex
from dsearch.index.keyword.languages import languages
from dsearch.index.keyword.query import CorpusStatistics, ParsedQuery, highlights, parse_query
from dsearch.index.keyword.tokenizer import TOKENIZER_VERSION, Tokenizer
from dsearch.index.manifest import FORMAT, Manifest, manifest_schema
from dsearch.index.passages import PassageTable

__all__ = [
    "AUTO",
    "BOUNDS",
    "DENSE_KINDS",
    "FORMAT",
    "K1",
    "TOKENIZER_VERSION",
    "B",
    "CorpusStatistics",
    "DenseIndex",
    "DenseKind",
    "Generation",
    "IndexMeasurement",
    "KeywordIndex",
    "Manifest",
    "ParsedQuery",
    "PassageTable",
    "TokenizedTexts",
    "Tokenizer",
    "build_tuned",
    "checked_weighting",
    "highlights",
    "languages",
    "manifest_schema",
    "parse_query",
    "remove_unfinished",
    "tuned",
]
