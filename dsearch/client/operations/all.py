"""Every call of the clients, each described once as a flow of requests and answers (flow.py).

A new route is a new method in one of these classes; both clients have it then. An engine in this process
(`LocalEngine`) has the same methods; a test compares the signatures.
"""

from __future__ import annotations

from dsearch.client.operations.documents import DocumentOperations
from dsearch.client.operations.models import ModelOperations
from dsearch.client.operations.search import SearchOperations
from dsearch.client.operations.tasks import TaskOperations


class Operations(DocumentOperations, SearchOperations, ModelOperations, TaskOperations):
    """The calls that both clients and a local engine have."""
