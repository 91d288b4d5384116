"""A process that writes, reads what it was promised and goes on after errors: run by store_trials.py.

    python fault_writer.py FOLDER STEPS LIMIT|0

With a limit in bytes no file grows beyond it until that was an error once: the kernel writes what fits.
A line on standard output per write: "ack ID" or "err CODE ID"; "refused CODE" when it could not be opened.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import numpy as np

from dsearch.errors import DsearchError
from dsearch.store import Store
from dsearch.types import Document

SMALLEST = 4096  # half a watermark


def limit(most_bytes: int) -> None:
    _, highest = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, highest))


def main() -> None:
    try:
        store = Store.open(Path(sys.argv[1]))
    except DsearchError as error:
        os.write(1, f"refused {error.code}\nend\n".encode())
        return
    acknowledged: list[str] = []
    limited = sys.argv[3] != "0"
    if limited:
        limit(int(sys.argv[3]))
    for step in range(int(sys.argv[2])):
        document = Document(f"d{step}", f"text {step} " * 500)
        try:
            store.upsert([document], np.full((1, 64), step, np.float32))
            acknowledged.append(document.id)
            line = f"ack {document.id}"
        except DsearchError as error:
            line = f"err {error.code} {document.id}"
            if limited:
                limit(resource.RLIM_INFINITY)
        os.write(1, f"{line}\n".encode())
        found = {document.id for document in store.list()}
        assert found.issuperset(acknowledged), "searches must go on"
    os.write(1, b"end\n")
    store.close()


if __name__ == "__main__":
    main()
