"""An engine of this process behind the calls of the clients; each module registers what it answers."""

from dsearch.client.local import documents, models, search, tasks

__all__ = ["documents", "models", "search", "tasks"]
