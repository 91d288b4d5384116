"""What each process would build late, and alike: built when this is imported, by the one that forks."""

from __future__ import annotations

from dsearch.index.keyword.languages import import_bm25s
from dsearch.service.app import declared_routes

import_bm25s()
declared_routes()
