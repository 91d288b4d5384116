"""Highlights: pieces of a text that have the words of a query, or its meaning."""
