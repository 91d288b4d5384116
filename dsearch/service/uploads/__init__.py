"""Uploaded files: kept in the home, read into documents, attached to collections in the background."""
