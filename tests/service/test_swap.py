"""Promotions, refreshes and training under load: no query fails, each answer is that of the state it names.

`SWAP_QUERIES=100000` in the environment asks as many; the suite a thousand.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from support.service.service_fakes import DIMENSION, WORDS

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection

QUERIES = int(os.environ.get("SWAP_QUERIES", "1000"))
CLIENTS = 6
TEXTS = [f"{a} {b}" for a, b in itertools.product(WORDS[:6], WORDS[8:13])]

BATCH = 8
TRAINING = {  # too few for the gate to tell: what comes of it waits until it is promoted
    "queries": {f"q{i}": f"{WORDS[i % 8]} {WORDS[8 + i % 7]}" for i in range(12)},
    "judgements": {f"q{i}": {f"d{i + 10:03d}": 1} for i in range(12)},
    "epochs": 3,
}
State = tuple[int, str]
Answer = list[tuple[str, float, float]]


def other_head(seed: int) -> Head:
    head = Head(DIMENSION, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for delta in (head.query_delta, head.key_delta):
            delta.copy_(0.1 * torch.randn(delta.shape, generator=generator))
        head.keyword_weight.fill_(0.2 + 0.3 * seed)
    return head.eval()


def test_every_answer_is_that_of_the_state_it_names(client: TestClient, papers: Collection) -> None:
    versions, learned = ["v0", *(papers.add_model(other_head(seed), {}) for seed in (1, 2, 3))], "v4"
    expected: dict[State, dict[str, Answer]] = {}
    rounds = itertools.count()
    finished = threading.Event()
    problems: list[str] = []
    seen: list[tuple[State, str, Answer]] = []
    served: set[str] = set()

    def remember() -> None:
        """What every text is answered with in the present state; nobody else changes it meanwhile.

        No document is written, so a state is a generation and a model; their sequence counts the swaps too.
        """
        for result in papers.search_batch(TEXTS, limit=5):
            answers = expected.setdefault((result.stamp.generation, result.stamp.model), {})
            answers[result.query] = [(hit.id, hit.score, hit.weight) for hit in result.hits]

    def load(number: int) -> None:
        draw = np.random.default_rng(number)
        while (len(seen) < QUERIES or learned not in served) and not problems:
            texts = [TEXTS[i] for i in draw.integers(len(TEXTS), size=BATCH)]
            if next(rounds) % 2:
                body = {"query": texts[0], "limit": 5}
                answered = client.post("/v1/collections/papers/search", json=body)
            else:
                body = {"queries": texts, "limit": 5}
                answered = client.post("/v1/collections/papers/search/batch", json=body)
            if answered.status_code != 200:
                problems.append(answered.text)
                return
            results: list[dict[str, Any]] = answered.json().get("results", [answered.json()])
            for text, result in zip(texts, results, strict=False):
                found = [(hit["id"], hit["score"], hit["weight"]) for hit in result["hits"]]
                seen.append(((result["generation"], result["model"]), text, found))
                served.add(result["model"])

    def learn() -> None:
        """Ask for a head of the service's own making, and let it take its turn when it is there."""
        task = client.post("/v1/collections/papers/train", json=TRAINING).json()
        while not task["ended"] and not finished.is_set():
            time.sleep(0.2)
            task = client.get(f"/v1/tasks/{task['id']}").json()
        if task["state"] != "done" or task["result"]["model"] != learned or task["result"]["live"]:
            problems.append(f"trained: {task}")
        versions.append(learned)

    def swap() -> int:
        for swaps in itertools.count():
            if finished.is_set():
                return swaps
            papers.promote(versions[(swaps + 1) % len(versions)])
            remember()
            if swaps % 2:
                papers.refresh()
                remember()
        raise AssertionError

    remember()
    with ThreadPoolExecutor(CLIENTS + 2) as pool:
        swapping, learning = pool.submit(swap), pool.submit(learn)
        try:
            list(pool.map(load, range(CLIENTS)))
        finally:
            finished.set()
        swaps = swapping.result()
        learning.result()
    assert problems == []
    assert len(seen) >= QUERIES
    assert swaps >= 3
    assert len({state for state, _, _ in seen}) >= 4
    for state, text, found in seen:
        wanted = expected[state][text]
        assert [id for id, _, _ in found] == [id for id, _, _ in wanted], (state, text)
        np.testing.assert_allclose(
            [numbers[1:] for numbers in found], [numbers[1:] for numbers in wanted], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("route", ["search", "attend"])
def test_a_canary_is_asked_by_name(client: TestClient, papers: Collection, route: str) -> None:
    papers.add_model(other_head(1), {})
    body = {"query": "cat"} if route == "search" else {"queries": ["cat"]}
    for version in ("v0", "v1"):
        answered = client.post(f"/v1/collections/papers/{route}", json={**body, "model": version})
        assert answered.json()["model"] == version


def test_rolled_back_and_deleted_versions(client: TestClient, papers: Collection) -> None:
    url = "/v1/collections/papers/models"
    nothing = client.post(f"{url}/rollback")
    assert (nothing.status_code, nothing.json()["code"]) == (409, "conflict")
    for seed in (1, 2):
        papers.add_model(other_head(seed), {})
        client.post(f"{url}/v{seed}/promote")
    assert client.delete(f"{url}/v2").status_code == 409  # it answers
    rolled = client.post(f"{url}/rollback").json()
    assert (rolled["model"], rolled["previous"]) == ("v1", "v2")
    assert client.post("/v1/collections/papers/search", json={"query": "cat"}).json()["model"] == "v1"
    assert client.delete(f"{url}/v2").status_code == 204
    assert client.delete(f"{url}/v2").json()["code"] == "model_not_found"
    assert client.delete(f"{url}/v0").status_code == 422
    assert [one["version"] for one in client.get(url).json()["models"]] == ["v0", "v1"]
