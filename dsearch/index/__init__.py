"""The derived artefacts of one generation: keys (FAISS) and keyword scores (BM25). NumPy, never torch."""

from __future__ import annotations

from dsearch.index.dense import DenseIndex
from dsearch.index.dense_kinds import AUTO, BOUNDS, DENSE_KINDS, DenseKind
from dsearch.index.generation import Generation
from dsearch.index.generation_build import remove_unfinished
from dsearch.index.highlight import highlights
from dsearch.index.keyword import K1, B, KeywordIndex
from dsearch.index.keyword_data import checked_weighting
from dsearch.index.languages import languages
from dsearch.index.manifest import FORMAT, Manifest, manifest_schema
from dsearch.index.passages import PassageTable
from dsearch.index.query import ParsedQuery, parse_query
from dsearch.index.query_terms import CorpusStatistics
from dsearch.index.tokenize import TOKENIZER_VERSION, Tokenizer
from dsearch.index.tokenized import TokenizedTexts
from dsearch.index.tuning import Measured, build_tuned, tuned

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
    "KeywordIndex",
    "Manifest",
    "Measured",
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
