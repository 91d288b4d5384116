"""An engine of this process behind the calls of the clients; each module registers what it answers."""

from dsearch.client.local import collections, search, tasks

__all__ = ["collections", "search", "tasks"]
