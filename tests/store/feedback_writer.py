"""Writes feedback without end until it is killed: `python feedback_writer.py FOLDER`. Not a test.

A line on standard output after each acknowledged batch: the ids of its events.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dsearch.store import Event, FeedbackStore, Impression


def main() -> None:
    store = FeedbackStore(Path(sys.argv[1]))
    for batch in range(1_000_000):
        query_id = f"q{batch}"
        events = [
            Event(f"e{batch}-{n}", query_id, f"key{n}", "", "click", "d1", 1, 0.0, float(batch))
            for n in range(3)
        ]
        store.record([Impression(query_id, "words " * 50, 0.0, ids=("d1",), weights=(1.0,))], events)
        print(*(event.event_id for event in events), flush=True)


if __name__ == "__main__":
    main()
