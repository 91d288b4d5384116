"""Sources of documents: files, folders, streams, test collections, and the demo corpus."""

from __future__ import annotations

from dsearch.corpus.formats.beir import BeirFolder, read_queries, write_beir
from dsearch.corpus.formats.lines import Problems, SourceProblem
from dsearch.corpus.made_queries import inverse_cloze, sentences, title_queries
from dsearch.corpus.mirror import Mirror
from dsearch.corpus.python_docs import (
    PythonCorpus,
    python_corpus,
    python_documents,
    python_judgements,
    write_python_docs,
)
from dsearch.corpus.readers import SUPPORTED, read, read_sources
from dsearch.corpus.records import RecordFields, content_id, parse_types

__all__ = [
    "SUPPORTED",
    "BeirFolder",
    "Mirror",
    "Problems",
    "PythonCorpus",
    "RecordFields",
    "SourceProblem",
    "content_id",
    "inverse_cloze",
    "parse_types",
    "python_corpus",
    "python_documents",
    "python_judgements",
    "read",
    "read_queries",
    "read_sources",
    "sentences",
    "title_queries",
    "write_beir",
    "write_python_docs",
]
