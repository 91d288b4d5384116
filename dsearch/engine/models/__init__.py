"""Saved models: head, encoders, documents, training record."""
