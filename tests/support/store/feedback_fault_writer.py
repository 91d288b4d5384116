"""A process that writes feedback, reads what it was promised and goes on after errors: run by
feedback_trials.py.

    python feedback_fault_writer.py FOLDER BATCHES LIMIT|0

`FOLDER` is that of a collection with documents. With a limit in bytes no file grows beyond it until that was
an error once: the kernel writes what fits. In the middle the first key's events are cleared.
A line on standard output per batch: "ack NUMBER" or "err CODE NUMBER", of the clearing "ack cleared" or
"err CODE cleared". "refused CODE" where a read met the fault itself; the next one must not.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from support.store.fault_writer import limit
from support.store.feedback_writer import ids, write

from dsearch.errors import DsearchError
from dsearch.store import FeedbackStore, Store


def events_of(store: FeedbackStore) -> set[str]:
    return {event.event_id for page in store.pages() for event in page.events}


def main() -> None:
    folder, batches, limited = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] != "0"
    documents = Store.open(folder, readonly=True)
    whole = [document.id for document in documents.list()]
    os.write(1, b"opened\n")  # the trials' faults come after this
    store = FeedbackStore(folder)
    promised: set[str] = set()
    if limited:
        limit(int(sys.argv[3]))
    steps: list[int | str] = [*range(batches)]
    steps.insert(batches // 2, "cleared")
    for step in steps:
        try:
            if step == "cleared":
                promised = {name for name in promised if not name.endswith("-0")}  # it may be done in part
                store.clear(key="key0")
            else:
                write(store, int(step))
                promised.update(ids(int(step)))
            line = f"ack {step}"
        except DsearchError as error:
            line = f"err {error.code} {step}"
            if limited:
                limit(resource.RLIM_INFINITY)
        os.write(1, f"{line}\n".encode())
        try:
            found = events_of(store)
        except DsearchError as error:  # it opens the file itself, and the second failing call may be its own
            os.write(1, f"refused {error.code}\n".encode())
            found = events_of(store)
        assert found >= promised, f"{sorted(promised - found)}: what was acknowledged must be read"
        assert [document.id for document in documents.list()] == whole, "searches must go on"
    os.write(1, b"end\n")
    store.close()
    documents.close()


if __name__ == "__main__":
    main()
