"""Attention by sampling documents: hard attention, Gumbel top-k, estimators with known variance."""
