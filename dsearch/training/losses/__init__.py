"""Losses and exact partition functions."""
