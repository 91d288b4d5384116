"""A search engine that is one differentiable function."""

from __future__ import annotations

__version__ = "0.1.0"
