"""Calibrations of versions on disk: which one counts, and that one does not replace another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.locks import WatchedLock, waiting

from dsearch.engine.models import confidence
from dsearch.engine.models.confidence import FILE_NAME, Calibrations
from dsearch.errors import ModelNotFound
from dsearch.evaluation.confidence import Calibration, Logistic
from dsearch.store import ModelRecord


def calibration(threshold: float, source: Any = "judgements") -> Calibration:
    logistic = Logistic([0.0], [1.0], [1.0], 0.0)
    return Calibration(logistic, logistic, threshold, 0.25, source, 7, 9)


RECORDS = {
    "v1": ModelRecord("v1", "v0", {"confidence": calibration(0.1).to_dict()}),
    "v2": ModelRecord("v2", "v1", {"scope": "head"}),
    "v3": ModelRecord("v3", "v1", {"scope": "remember"}),
    "v4": ModelRecord("v4", "v1", {"confidence": {"format": 0}}),
}


def kept(folder: Path) -> Calibrations:
    """Calibrations of a collection in a folder with the models of `RECORDS`."""

    def model(version: str) -> ModelRecord:
        if version not in RECORDS:
            raise ModelNotFound(version)
        return RECORDS[version]

    return Calibrations(SimpleNamespace(path=folder, name="food", model=model))  # type: ignore[arg-type]


def thresholds(calibrations: Calibrations) -> dict[str, float | None]:
    versions = {version: calibrations.of(version) for version in ("v0", *RECORDS, "v9")}
    return {version: None if one is None else one.threshold for version, one in versions.items()}


def test_at_first_versions_have_what_their_training_recorded(tmp_path: Path) -> None:
    """A version that only remembers answers as its parent does; a damaged record is none."""
    expected = {"v0": None, "v1": 0.1, "v2": None, "v3": 0.1, "v4": None, "v9": None}
    assert thresholds(kept(tmp_path)) == expected
    assert not (tmp_path / FILE_NAME).exists()


def test_calibrations_of_several_versions_stand_beside_each_other(tmp_path: Path) -> None:
    calibrations = kept(tmp_path)
    calibrations.keep("v0", calibration(0.5))
    calibrations.keep("v2", calibration(0.6))
    calibrations.keep("v0", calibration(0.7))
    for reader in (calibrations, kept(tmp_path)):
        assert thresholds(reader) == {"v0": 0.7, "v1": 0.1, "v2": 0.6, "v3": 0.1, "v4": None, "v9": None}
    assert calibrations.of("v0") == calibration(0.7)
    calibrations.keep("v9", calibration(0.8))
    assert kept(tmp_path).of("v9") is None  # deleted since
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_calibrations_are_written_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second to read the file would write it without what the first has added."""
    calibrations = kept(tmp_path)
    monkeypatch.setattr(calibrations, "_writing", writing := WatchedLock())
    with waiting(writing, lambda: calibrations.keep("v2", calibration(0.6))):
        kept(tmp_path).keep("v0", calibration(0.5))
    assert {version: thresholds(kept(tmp_path))[version] for version in ("v0", "v2")} == {
        "v0": 0.5,
        "v2": 0.6,
    }


def test_judgements_count_before_what_training_recorded_and_made_queries_do_not(tmp_path: Path) -> None:
    calibrations = kept(tmp_path)
    calibrations.keep("v1", calibration(0.8, "documents"))
    assert thresholds(calibrations)["v1"] == 0.1
    assert thresholds(calibrations)["v3"] == 0.1
    calibrations.keep("v1", calibration(0.9))
    assert thresholds(calibrations)["v1"] == 0.9
    assert thresholds(calibrations)["v3"] == 0.9


def test_what_another_process_wrote_is_read_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = kept(tmp_path)
    assert reader.of("v0") is None
    kept(tmp_path).keep("v0", calibration(0.5))
    first = reader.of("v0")
    assert first is not None
    assert first.threshold == 0.5
    monkeypatch.setattr(reader, "_entries", lambda: pytest.fail("it was read again"))
    assert reader.of("v0") is first


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 1, "versions": []}',
        '{"format": 2, "versions": {"v0": 1}}',
    ],
)
def test_a_file_that_is_none_gives_no_confidence(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert kept(tmp_path).of("v0") is None
    assert kept(tmp_path).of("v1") == calibration(0.1)


def test_what_takes_the_confidence_from_answers_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    assert kept(tmp_path).of("v0") is None
    assert f"{tmp_path / FILE_NAME}: " in caplog.text
    assert "answers have no confidence" in caplog.text
    (tmp_path / FILE_NAME).unlink()
    assert kept(tmp_path).of("v4") is None
    assert "food, v4: " in caplog.text


def test_a_calibration_is_synced_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File first, then its place, then the folder that names it."""
    order: list[tuple[str, bool]] = []

    def file_synced(path: Path) -> None:
        assert json.loads(path.read_text())["format"] == 1
        order.append(("file", (tmp_path / FILE_NAME).exists()))

    def folder_synced(path: Path) -> None:
        assert path == tmp_path
        order.append(("folder", (tmp_path / FILE_NAME).exists()))

    monkeypatch.setattr(confidence, "sync_file", file_synced)
    monkeypatch.setattr(confidence, "sync_folder", folder_synced)
    kept(tmp_path).keep("v0", calibration(0.5))
    assert order == [("file", False), ("folder", True)]


def test_an_interrupted_write_leaves_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrations = kept(tmp_path)
    calibrations.keep("v0", calibration(0.5))

    def full(path: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(confidence, "sync_file", full)
    with pytest.raises(OSError, match="No space"):
        calibrations.keep("v0", calibration(0.9))
    assert thresholds(kept(tmp_path))["v0"] == 0.5


@pytest.mark.parametrize("same", ["time", "file"])
def test_a_file_that_another_process_wrote_is_read_again(tmp_path: Path, same: str) -> None:
    """One that took the file's place in the same moment, or one that was written into it."""
    path, calibrations = tmp_path / FILE_NAME, kept(tmp_path)
    kept(tmp_path).keep("v0", calibration(0.5))
    before, taken = calibrations.of("v0"), path.stat()
    assert before is not None
    changed = path.read_text().replace("0.5", "0.75")
    if same == "time":
        path.rename(tmp_path / "earlier")
    path.write_text(changed)
    later = taken.st_mtime_ns + (0 if same == "time" else 10**9)
    os.utime(path, ns=(later, later))
    after = calibrations.of("v0")
    assert after is not None
    assert (before.threshold, after.threshold) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("right", "verdict"),
    [
        (1.0, "likely"),
        (confidence.LIKELY, "likely"),
        (np.nextafter(confidence.LIKELY, 0), "possible"),
        (confidence.POSSIBLE, "possible"),
        (np.nextafter(confidence.POSSIBLE, 0), "unlikely"),
    ],
    ids=["sure", "likely", "below likely", "possible", "below possible"],
)
def test_verdicts_begin_at_their_bounds(right: float, verdict: str) -> None:
    assert confidence._verdict(True, right) == verdict
    assert confidence._verdict(False, right) == "nothing fits"
