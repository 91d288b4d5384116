"""Calibrations of a collection's versions: in a model's record, and in `calibrations.json` beside it.

Training writes the former, with the version. The file has those of v0 and later ones, fitted by `dsearch
index` and `dsearch evaluate`; an entry on judgements, or any entry where the record has none, goes first. The
file is derived: without it, or with a damaged one, answers have no confidence.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import Any, cast

from dsearch.errors import CorruptData, ModelNotFound
from dsearch.evaluation.confidence import Calibration
from dsearch.index.durable import sync_file, sync_folder
from dsearch.store import ModelRecord, Store

FILE_NAME = "calibrations.json"
RECORDED = "confidence"  # member of a model's record
_UNTRAINED = "v0"
_FORMAT = 1

_log = logging.getLogger(__name__)


class KeptCalibrations:
    """Calibrations by version, read again when the file has changed.

    Args:
        store: the collection's.
    """

    def __init__(self, store: Store):
        self._store = store
        self._path = store.path / FILE_NAME
        self._cached: dict[str, Calibration | None] = {}
        self._read_at: tuple[int, int] | None = None
        self._writing = threading.Lock()

    def of(self, version: str) -> Calibration | None:
        """Return the calibration of a version; None without one."""
        present = self._identity()
        if present != self._read_at:
            self._cached, self._read_at = {}, present
        if version not in self._cached:
            self._cached[version] = self._stored(version)
        return self._cached[version]

    def keep(self, version: str, calibration: Calibration) -> None:
        """Write the calibration of a version durably.

        Raises:
            OSError: the disk.
        """
        with self._writing:
            entries = {**self._entries(), version: calibration.to_dict()}
            unfinished = self._path.with_name(f".{FILE_NAME}.{os.getpid()}.writing")
            unfinished.write_text(json.dumps({"format": _FORMAT, "versions": entries}))
            sync_file(unfinished)
            unfinished.replace(self._path)
            sync_folder(self._path.parent)
            self._read_at = None

    def _stored(self, version: str) -> Calibration | None:
        recorded: Any = None
        record: ModelRecord | None = None
        if version != _UNTRAINED:
            try:
                record = self._store.model(version)
                recorded = record.record.get(RECORDED)
            except ModelNotFound:
                return None
        entry = self._entries().get(version)
        if recorded is not None and (entry is None or entry.get("source") != "judgements"):
            entry = recorded
        if entry is None:
            parent = None if record is None or record.record.get("scope") != "remember" else record.parent
            return None if parent is None else self.of(parent)
        try:
            return Calibration.from_dict(entry)
        except CorruptData as error:
            _log.warning("%s, %s: %s", self._store.name, version, error)
            return None

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def _entries(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
            versions: Any = content["versions"] if content["format"] == _FORMAT else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s: %s; answers have no confidence", self._path, error)
            return {}
        return cast("dict[str, Any]", versions) if isinstance(versions, dict) else {}
