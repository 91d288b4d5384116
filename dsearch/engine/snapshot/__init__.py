"""Immutable view of the documents of a collection."""
