"""Rewards by an address on this machine: asked for draws, checked, and what trains with them."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dsearch.engine import Collection
from dsearch.errors import InvalidRequest, Unavailable
from dsearch.jobs import TrainingJob
from dsearch.service.schemas.tasks import TrainRequest
from dsearch.training import run_training
from dsearch.training.data.rewards import RewardCallback

Serve = Callable[[Callable[[Any], Any]], str]
JUDGED: dict[str, Any] = {"queries": {"q": "a"}, "judgements": {"q": {"d0": 1}}}
SHOWN = np.array([[0, 2], [1, 1]])


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a program that answers requests with rewards; returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(reward: Callable[[Any], Any]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = reward(body)
                if isinstance(content, str) and content.startswith("http"):
                    self.send_response(307)
                    self.send_header("Location", content)
                    self.end_headers()
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(content if isinstance(content, bytes) else json.dumps(content).encode())

            def log_message(self, *_: Any) -> None:
                return

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/rewards"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def name_rows(positions: np.ndarray) -> list[list[str]]:
    return [[f"d{position}" for position in line] for line in positions.tolist()]


def test_a_program_is_asked_with_texts_and_ids(serve: Serve) -> None:
    asked: list[Any] = []

    def reward(body: Any) -> Any:
        asked.append(body)
        return {"rewards": [[float(id[1:]) for id in line] for line in body["ids"]]}

    rewards = RewardCallback(serve(reward), name_rows)(["a", "b"], SHOWN)
    np.testing.assert_array_equal(rewards, SHOWN)
    assert asked == [{"queries": ["a", "b"], "ids": [["d0", "d2"], ["d1", "d1"]]}]


def test_a_large_batch_is_rewarded_in_one_answer(serve: Serve) -> None:
    shown = np.arange(64 * 64).reshape(64, 64)
    worth = (shown / 7).astype(np.float32)
    rewards = RewardCallback(serve(lambda _: {"rewards": worth.tolist()}), name_rows)(["a"] * 64, shown)
    np.testing.assert_array_equal(rewards, worth)


OTHERS = [
    {},
    [],
    {"rewards": [[1.0]]},
    {"rewards": [[1, 2], [3]]},
    {"rewards": [["x", 1], [1, 1]]},
    b"\xff",
    b"NaN",
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", OTHERS)
def test_other_answers_are_refused(serve: Serve, content: Any) -> None:
    with pytest.raises(InvalidRequest, match="finite numbers, one for each id"):
        RewardCallback(serve(lambda _: content), name_rows)(["a", "b"], SHOWN)


def test_infinite_rewards_are_refused(serve: Serve) -> None:
    with pytest.raises(InvalidRequest, match="finite numbers"):
        RewardCallback(serve(lambda _: {"rewards": [[1e999, 1], [1, 1]]}), name_rows)(["a", "b"], SHOWN)


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"]
)
def test_a_program_that_speaks_otherwise_or_stops_in_the_middle_is_not_there(reply: bytes) -> None:
    def answer() -> None:
        taken, _ = listening.accept()
        with taken:
            taken.recv(1 << 16)
            taken.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with pytest.raises(Unavailable, match=r"[^\n]; is the program that rewards running"):
            RewardCallback(url, name_rows)(["a"], SHOWN[:1])


def test_a_redirection_is_not_followed_and_nobody_is_named(serve: Serve) -> None:
    asked: list[Any] = []
    elsewhere = serve(lambda body: asked.append(body) or {"rewards": [[1, 1], [1, 1]]})
    with pytest.raises(Unavailable, match="307"):
        RewardCallback(serve(lambda _: elsewhere), name_rows)(["a", "b"], SHOWN)
    assert not asked
    with pytest.raises(Unavailable, match="is the program that rewards running"):
        RewardCallback("http://127.0.0.1:1/rewards", name_rows)(["a"], SHOWN[:1])


def test_it_is_asked_directly_whatever_proxy_the_environment_names(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    proxy = serve(lambda body: asked.append(body) or {"rewards": [[7, 7], [7, 7]]})
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    callback = RewardCallback(serve(lambda _: {"rewards": [[1, 2], [3, 4]]}), name_rows)
    assert callback(["a", "b"], SHOWN).tolist() == [[1, 2], [3, 4]]
    assert not asked


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org:80/x",
        "http://127.0.0.1.example.org:80",
        "http://10.0.0.1:80/",
        "https://127.0.0.1:1/",
        "http://user@127.0.0.1:80/",
        "http://127.0.0.1:80@example.org/",
        "file:///etc/passwd",
        "http://127.0.0.1:80\n/",
    ],
)
def test_only_addresses_of_this_machine_are_accepted(url: str) -> None:
    with pytest.raises(InvalidRequest, match="reward_url"):
        RewardCallback(url, name_rows)


def test_a_server_accepts_it_for_addresses_of_its_machine_alone() -> None:
    asked = {**JUDGED, "objective": "reinforce", "reward_url": "http://127.0.0.1:9000/rewards"}
    assert TrainRequest.model_validate(asked).reward_url == asked["reward_url"]
    with pytest.raises(ValidationError, match="reward_url"):
        TrainRequest.model_validate({**asked, "reward_url": "http://example.org:80/"})


def test_it_belongs_to_its_objective() -> None:
    url = "http://127.0.0.1:9000/rewards"
    with pytest.raises(InvalidRequest, match="reward_url needs objective='reinforce'"):
        TrainingJob(**JUDGED, reward_url=url).check()
    TrainingJob(**JUDGED, objective="reinforce", reward_url=url).check()


def test_training_follows_the_rewards(serve: Serve, collection: Collection) -> None:
    """The program rewards one document, whatever the query: the trained attention moves to it."""
    asked: list[int] = []

    def reward(body: Any) -> Any:
        asked.append(len(body["queries"]))
        return {"rewards": [[float(id == "d5") for id in line] for line in body["ids"]]}

    documents = [collection.store.get(f"d{i}") for i in range(16)]
    queries = {f"q{i}": document.title for i, document in enumerate(documents)}
    judged = {f"q{i}": {document.id: 1} for i, document in enumerate(documents)}
    job = TrainingJob(
        queries=queries,
        judgements=judged,
        objective="reinforce",
        reward_url=serve(reward),
        epochs=6,
        learning_rate=0.05,
        tune=False,
        memory=False,
    )
    before = collection.attend(list(queries.values()), candidates=16, mode="dense")
    result = run_training(collection, job)
    assert sum(asked) >= 6 * 8
    version = result.register(collection, job).version
    after = collection.attend(list(queries.values()), candidates=16, mode="dense", model=version)

    def share(found: Any) -> float:
        """Mean weight of the rewarded document."""
        lines = zip(found.ids, found.output.weights.tolist(), strict=True)
        return float(np.mean([weights[ids.index("d5")] for ids, weights in lines]))

    assert share(after) > share(before)
