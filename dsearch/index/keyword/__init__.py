"""Keyword search: BM25, tokenizers, query syntax, highlights."""
