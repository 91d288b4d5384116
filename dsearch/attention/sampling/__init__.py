"""Attention by drawn documents: hard attention, Gumbel top-k, estimators with known variance."""
