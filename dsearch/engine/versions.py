"""`CollectionModels`: the versions of a collection are added, promoted, rolled back and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsearch.engine.indexing.tuning import TunedKeys, keep_tuned
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.models.files import (
    UNTRAINED,
    before_live,
    delete_version,
    require_served,
    save_model,
    unfinished_folder,
    with_values,
)
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.engine.rebuild import Rebuilder, measured_live
from dsearch.engine.state.state import CollectionState
from dsearch.errors import Conflict, DsearchError, Gone
from dsearch.index.durable import whole_or_gone

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.encoder import EncoderChange


class CollectionModels(CollectionState):
    """The versions of a collection."""

    rebuilder: Rebuilder

    def add_model(
        self,
        head: Head,
        record: dict[str, Any],
        *,
        parent: str = UNTRAINED,
        encoder: EncoderChange | None = None,
        documents: EncodedDocuments | None = None,
        learned_from: LearnedQueries | None = None,
    ) -> str:
        """Store a trained model as a version that is not live yet.

        It takes over the learned values of its parent; see `with_values_of`.

        Args:
            head: trained head.
            record: training metadata, stored as JSON.
            parent: version that training started from.
            encoder: change of the query encoder.
            documents: re-encoded documents; required if the document encoder was trained.
            learned_from: queries that it learned from.

        Raises:
            ModelNotFound, CorruptData: of the parent.
            Gone: the parent answered predictions and no searches, and so would what is made from it.
            InsufficientStorage, Unavailable: the disk; nothing of it was kept.
        """
        if self.store.predicts_only(parent):
            require_served(self.store, parent)
        if documents is None:
            head, record = self.with_values_of(parent, head, record)
        with self._writing:
            unfinished = unfinished_folder(self.store, self.store.next_model_version())
            with whole_or_gone(unfinished, problem=f"{self.store.path}: the version could not be kept"):
                return save_model(
                    self.store,
                    head,
                    record,
                    parent=parent,
                    encoder=encoder,
                    documents=documents,
                    learned_from=learned_from,
                )

    def with_values_of(
        self, version: str, head: Head, record: Mapping[str, Any]
    ) -> tuple[Head, dict[str, Any]]:
        """Return a head and its record with the learned values of a version; see models/values.py.

        Values of a version with documents of its own are of other embeddings and are not taken over, nor are
        those of a version that this release does not serve.

        Raises:
            ModelNotFound, CorruptData.
        """
        given = self.store.model(version).record
        if version != UNTRAINED and "documents" not in given:
            with suppress(Gone):
                return with_values(head, record, self.stored_head(version), given)
        return head, dict(record)

    def encoded_documents_of(self, version: str) -> EncodedDocuments | None:
        """Return every document as a version embeds it; None where these are the collection's embeddings."""
        return self._documents.encoded(version)

    def add_to_record(self, version: str, fields: dict[str, Any]) -> None:
        """Put members into the record of a version: what is known of it since it was added, as JSON.

        The file that was written with its model stays as it is.

        Raises:
            ModelNotFound.
        """
        with self._writing:
            self.store.add_to_record(version, fields)

    def promote(self, version: str, *, after: str | None = None) -> None:
        """Make a version live by one committed row, with `after` only in place of that one; no rebuild.

        Args:
            version: the version.
            after: version that it was made from, or compared with.

        Raises:
            ModelNotFound, CorruptData: it cannot be loaded; the live one stays.
            Gone: it has a part that this release does not serve.
            Conflict: another one than `after` is live.
        """
        self.head(version)
        self._encoders.check(version)
        own_documents = self._documents.has(version)
        if own_documents:
            self._documents.snapshot(version)  # loaded before it goes live
        if self._compared is not None or self.rebuilder.by_itself:  # texts are encoded here
            self._encoders.prepare(version)
        with self._writing:
            self._require_live(after, version)
            self.store.promote(version)
            self._live.catch_up()
        if own_documents:
            return  # it uses an index of its own
        if self.rebuilder.by_itself:
            self.rebuilder.in_background(self.retune, wait=True)
        else:
            # The model is live already. Without its encoder here, the previous index parameters stay.
            with suppress(DsearchError):
                self.retune()

    def _require_live(self, after: str | None, version: str) -> None:
        """Raise Conflict unless `after` is live; None requires nothing."""
        if after is not None and (live := self.live_model) != after:
            raise Conflict(f"{live} is live and not {after}, which {version} was made from; begin anew")

    def rollback(self) -> str:
        """Make the version live again that answered before, and return the one that answers.

        Raises:
            Conflict: there is no previous version.
            CorruptData: it cannot be loaded; the live one stays.
        """
        self.promote(before_live(self.store))
        return self.live_model

    def delete_model(self, version: str) -> None:
        """Delete a version and its files; what was trained from it goes on with its parent.

        Raises:
            ModelNotFound, InvalidRequest (v0), Conflict (it is live).
        """
        with self._writing:
            delete_version(self.store, version)
        self._forget_model(version)

    def encoder_change_of(self, version: str) -> EncoderChange | None:
        """Return the change of the query encoder of a version; None for the collection's own.

        Raises:
            ModelNotFound, CorruptData.
        """
        return self._encoders.change_of(version)

    def retune(self) -> TunedKeys | None:
        """Measure the recall of an approximate index for the live head, and tune it below its target.

        Runs after each promotion. Returns None for a kind that compares every key.
        """
        tuned = measured_live(self, spawned=self.rebuilder.by_itself)
        if tuned is not None:
            keep_tuned(self.store, tuned)
            with self._writing:
                self._live.use_parameters(tuned.generation, tuned.parameters)
        return tuned
