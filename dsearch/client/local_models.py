"""Models of an engine in this process; see `operations_models.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsearch.client import answers
from dsearch.client.tensors import head_file
from dsearch.engine import UNTRAINED, SearchEngine, head_from_bytes, head_tensors, require_head_alone


class LocalModels:
    """The calls about models; each is described in `Client`."""

    engine: SearchEngine

    def models(self, collection: str) -> answers.Models:
        """Every version with what is known of it; v0 is the untrained one."""
        opened = self.engine.collection(collection)
        live = opened.live_model
        known = [opened.store.model(UNTRAINED), *opened.store.models()]
        return answers.Models(
            live, [answers.Model(one.version, one.parent, one.version == live, one.record) for one in known]
        )

    def promote(self, collection: str, version: str) -> answers.Promoted:
        """Let a version answer from now on; to undo it promote `previous`."""
        opened = self.engine.collection(collection)
        previous = opened.live_model
        opened.promote(version)
        return answers.Promoted(version, previous, opened.store.sequence)

    def rollback(self, collection: str) -> answers.Promoted:
        """Let the version answer again that did before the live one."""
        opened = self.engine.collection(collection)
        previous = opened.live_model
        version = opened.rollback()
        return answers.Promoted(version, previous, opened.store.sequence)

    def delete_model(self, collection: str, version: str) -> None:
        """Delete a version that neither answers nor is another's parent."""
        self.engine.collection(collection).delete_model(version)

    def head(self, collection: str, version: str) -> dict[str, Any]:
        """The tensors of a version's head, as NumPy arrays by name."""
        tensors = head_tensors(self.engine.collection(collection).head(version))
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}

    def add_model(
        self,
        collection: str,
        tensors: Mapping[str, Any],
        *,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> answers.ModelAdded:
        """Keep a head that was trained elsewhere as a new version, which is not live."""
        opened = self.engine.collection(collection)
        head, given = head_from_bytes(head_file(tensors, record), opened.store.dimension)
        parent = parent or opened.live_model
        require_head_alone(parent, opened.store.model(parent).record)
        version = opened.add_model(head, {"scope": "uploaded", "uploaded": given}, parent=parent)
        return answers.ModelAdded(version, parent, opened.store.sequence)
