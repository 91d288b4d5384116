"""What the service writes to its log, line by line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from dsearch.service.telemetry import JsonLines, request_id, set_up_logs


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was afterwards."""
    logger, own = logging.getLogger(), logging.getLogger("dsearch")
    before = logger.handlers[:], logger.level, own.level
    yield logger
    logger.handlers[:], level, own_level = before
    logger.setLevel(level)
    own.setLevel(own_level)


def record(message: str, *values: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("dsearch.access", level, __file__, 1, message, values, None)


def test_a_line_is_json_with_its_fields_and_the_request() -> None:
    entry = record("%s %s", "GET", 200, level=logging.WARNING)
    entry.created = 1_700_000_000.1234
    entry.fields = {"route": "/v1/ä", "took_ms": 1.5, "path": sys.path}
    token = request_id.set("r1")
    try:
        text = JsonLines().format(entry)
    finally:
        request_id.reset(token)
    line = json.loads(text)
    assert line["time"] == "2023-11-14T22:13:20.123+00:00"
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert (line["level"], line["logger"], line["message"]) == ("warning", "dsearch.access", "GET 200")
    assert (line["request_id"], line["route"], line["took_ms"]) == ("r1", "/v1/ä", 1.5)
    assert "ä" in text
    assert "\n" not in text


def test_what_is_not_known_has_no_entry() -> None:
    line = json.loads(JsonLines().format(record("ready")))
    assert line.keys() == {"time", "level", "logger", "message"}


def test_an_error_is_in_its_line() -> None:
    entry = record("failed")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        entry.exc_info = sys.exc_info()
    text = JsonLines().format(entry)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize(
    ("level", "format", "lines"),
    [("info", "text", 2), ("warning", "text", 1), ("error", "json", 0), ("debug", "json", 3)],
)
def test_a_level_is_of_this_package_and_others_warn(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], level: str, format: str, lines: int
) -> None:
    set_up_logs(level, format)  # type: ignore[arg-type]
    set_up_logs(level, format)  # type: ignore[arg-type]  # twice is once
    own, other = logging.getLogger("dsearch.access"), logging.getLogger("other")
    for logger in (own, other):
        logger.debug("d")
        logger.info("i")
    own.warning("w")
    written = capsys.readouterr().err.splitlines()
    assert len(written) == lines, written
    if format == "json":
        assert all(json.loads(line)["logger"] == "dsearch.access" for line in written)
    else:
        assert all(" dsearch.access: " in line for line in written)
