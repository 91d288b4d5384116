"""SIGTERM: what was accepted is answered, what was acknowledged is there afterwards, exit code 0.

`DRAIN_TRIALS=100` in the environment runs as many.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from support.patience import LATEST_S
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine

pytestmark = pytest.mark.server

CLIENTS = 6
TRIALS = int(os.environ.get("DRAIN_TRIALS", "3"))


class Client(threading.Thread):
    """Writes and searches in turn, a connection for each request, until nobody listens any more."""

    def __init__(self, origin: str, number: int):
        super().__init__(daemon=True)
        self._netloc, self._number = urlsplit(origin).netloc, number
        self.answered = 0
        self.written: list[str] = []
        self.lost: list[str] = []

    def run(self) -> None:
        for i in range(100_000):
            id = f"c{self._number}-{i}"
            connection = http.client.HTTPConnection(self._netloc, timeout=LATEST_S)
            try:
                connection.connect()
            except OSError:
                return
            try:
                if i % 2:
                    body = json.dumps({"query": "cat river"})
                    connection.request("POST", "/v1/collections/papers/search", body, _JSON)
                else:
                    body = json.dumps([{"id": id, "text": "cat"}])
                    connection.request("PUT", "/v1/collections/papers/documents", body, _JSON)
                answer = connection.getresponse()
                json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost.append(repr(error))
                continue
            finally:
                connection.close()
            self.answered += 1
            if answer.status != 200:
                self.lost.append(f"status {answer.status}")
            elif not i % 2:
                self.written.append(id)


_JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("trial", range(TRIALS))
def test_nothing_accepted_is_lost(tmp_path: Path, trial: int) -> None:
    home = tmp_path / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        made.create("papers").ingest(documents(60))
    with serving(home) as (origin, process):
        clients = [Client(origin, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        while sum(client.answered for client in clients) < 20:
            time.sleep(0.01)
        time.sleep(float(np.random.default_rng(trial).uniform(0, 0.3)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(LATEST_S) == 0  # 10 s, on a machine that has time
        assert process.stdout is not None
        accepted = int(process.stdout.readline())
        for client in clients:
            client.join(LATEST_S)
    # A connection may be cut before the server has seen its request; one that it has begun never is.
    assert sum(client.answered for client in clients) == accepted
    assert [one for client in clients for one in client.lost if one.startswith("status")] == []
    written = [id for client in clients for id in client.written]
    with SearchEngine(home, readonly=True, encoder=WordEncoder) as left:
        store = left.collection("papers").store
        assert store.rows_of(written).keys() == set(written)
    assert len(written) >= 10
