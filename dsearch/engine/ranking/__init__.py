"""Differentiable ranking of one snapshot."""
