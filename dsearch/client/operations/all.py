"""What can be asked of a server: each call described once, as a flow of requests and answers (flow.py).

A new route is a new method in one of these classes; both clients have it then. Those of `Operations` an
engine of this process has, too (`LocalEngine`; a test compares the signatures).
"""

from __future__ import annotations

from dsearch.client.operations.documents import DocumentOperations
from dsearch.client.operations.models import ModelOperations
from dsearch.client.operations.search import SearchOperations
from dsearch.client.operations.tasks import TaskOperations, UpkeepOperations


class Operations(DocumentOperations, SearchOperations, ModelOperations, UpkeepOperations):
    """What both clients and a local engine have."""


class ServerOperations(Operations, TaskOperations):
    """What both clients have."""
