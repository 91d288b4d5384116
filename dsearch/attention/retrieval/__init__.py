"""Attention over retrieved candidates: the trained head, top-k, hops, coverage."""
