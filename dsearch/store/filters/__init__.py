"""Filters: syntax and SQL."""
