"""What a kill between commit and answer leaves: events that were not acknowledged show, and count once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.store.feedback_rows import PAGE, click

from dsearch.store import FeedbackStore
from dsearch.store.sqlite.journal import Journal


class Killed(BaseException):
    """In place of a signal, at a chosen moment."""


@pytest.mark.parametrize(("moment", "shown"), [("_commit", ["e1"]), ("_acknowledge", ["e1", "e2"])])
def test_what_is_acknowledged_is_shown_and_a_repeat_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, shown: list[str]
) -> None:
    """Promised is that all that was acknowledged shows; what was not may, whole."""
    writer = FeedbackStore(tmp_path)
    writer.record([PAGE], [click("e1")])

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Journal, moment, killed)
        with pytest.raises(Killed):
            writer.record([], [click("e2")])
    writer.close()
    opened = FeedbackStore(tmp_path)
    assert [event.event_id for page in opened.pages() for event in page.events] == shown
    again = opened.record([], [click("e2")])
    assert (again.events, again.repeated) == (2 - len(shown), len(shown) - 1)
    assert [event.event_id for page in opened.pages() for event in page.events] == ["e1", "e2"]
    assert opened.problem() is None
    opened.close()
