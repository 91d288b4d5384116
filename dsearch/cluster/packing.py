"""How records (questions.py) travel between processes of one cluster, which trust each other: as bytes.

Ray takes bytes as they are. Left to it, its pickler goes through every object of a record in Python, which
took as long as the search. Nothing is opened by this: Ray lets in who has its token, and unpickles whatever
they send before any code of ours sees it.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(record: Any) -> bytes:
    """A record, or a list of them, as bytes."""
    return pickle.dumps(record, protocol=5)


def unpack(packed: bytes) -> Any:
    """What `pack` was given."""
    return pickle.loads(packed)
