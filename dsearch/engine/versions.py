"""`CollectionModels`: the versions of a collection are added, promoted, rolled back and deleted.

A version answers for one of two purposes, search and predict; see store/documents/purposes.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsearch.engine.indexing.tuning import TunedKeys, keep_tuned
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.models.files import UNTRAINED, before_live, delete_version, save_model
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.engine.rebuild import Rebuilder, measured_live
from dsearch.engine.state.state import CollectionState
from dsearch.errors import Conflict, DsearchError
from dsearch.store import AS_SEARCH
from dsearch.types import Purpose

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

        Args:
            head: trained head.
            record: training metadata, stored as JSON.
            parent: version that training started from.
            encoder: change of the query encoder.
            documents: re-encoded documents; required if the document encoder was trained.
            learned_from: queries that it learned from.
        """
        with self._writing:
            return save_model(
                self.store,
                head,
                record,
                parent=parent,
                encoder=encoder,
                documents=documents,
                learned_from=learned_from,
            )

    def add_to_record(self, version: str, fields: dict[str, Any]) -> None:
        """Put members into the record of a version: what is known of it since it was added, as JSON.

        The file that was written with its model stays as it is.

        Raises:
            ModelNotFound.
        """
        with self._writing:
            self.store.add_to_record(version, fields)

    def promote(self, version: str, purpose: Purpose | None = None, *, after: str | None = None) -> Purpose:
        """Make a version live by one committed row, with `after` only in place of that one; no rebuild.

        Args:
            version: the version.
            purpose: search or predict, for which it answers from now on; its own when None. A version for
                predictions answers no searches.
            after: version for that purpose that it was made from, or compared with.

        Returns its purpose.

        Raises:
            ModelNotFound, CorruptData: it cannot be loaded; the live one stays.
            Conflict: another one than `after` is live; a version for predictions is to answer searches.
        """
        purpose = purpose or self.store.purpose_of(version)
        if purpose == "predict":
            if version != AS_SEARCH:
                self.head(version)
                self._encoders.check(version)
            with self._writing:
                self._require_live(after, version, purpose)
                self.store.promote(version, purpose)
                self._live.catch_up()
            return purpose
        self.head(version)
        self._encoders.check(version)
        own_documents = self._documents.has(version)
        if own_documents:
            self._documents.snapshot(version)  # loaded before it goes live
        if self._compared is not None or self.rebuilder.by_itself:  # texts are encoded here
            self._encoders.prepare(version)
        with self._writing:
            self._require_live(after, version, purpose)
            self.store.promote(version)
            self._live.catch_up()
        if own_documents:
            return purpose  # it uses an index of its own
        if self.rebuilder.by_itself:
            self.rebuilder.in_background(self.retune, wait=True)
        else:
            # The model is live already. Without its encoder here, the previous index parameters stay.
            with suppress(DsearchError):
                self.retune()
        return purpose

    def _require_live(self, after: str | None, version: str, purpose: Purpose) -> None:
        """Raise Conflict unless `after` answers for a purpose; None requires nothing."""
        if after is not None and (live := self.answering(purpose)) != after:
            raise Conflict(f"{live} is live and not {after}, which {version} was made from; begin anew")

    def rollback(self, purpose: Purpose = "search") -> str:
        """Make the version live again that answered before for a purpose, and return the one that answers.

        Raises:
            Conflict: there is no previous version.
            CorruptData: it cannot be loaded; the live one stays.
        """
        self.promote(before_live(self.store, purpose), purpose)
        return self.answering(purpose)

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
