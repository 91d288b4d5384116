"""Draws and rewards over HTTP: plain JSON from any language, and both clients, with the results of Python."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from support.service.service_fakes import WordEncoder

from dsearch.client import Client, LocalEngine
from dsearch.errors import Gone, InvalidRequest
from dsearch.types import DrawResult

pytestmark = pytest.mark.server

NAME = "papers"
TEXTS = ["river stone", "winter garden"]
STATES = WordEncoder().encode_queries(TEXTS).astype(np.float64)


def post(url: str, path: str, body: Any, accept: str = "application/json") -> tuple[int, Any]:
    """What any language has: JSON over HTTP, without a client."""
    request = urllib.request.Request(
        f"{url}/v1/collections/{NAME}/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Accept": accept},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def paid(result: DrawResult) -> list[list[float]]:
    return [[float(id[-1] in "02468") for id in row.ids] for row in result.results]


def test_a_program_without_a_client_trains_a_head_by_rewards(server: str, remote: Client) -> None:
    draft, means = None, list[float]()
    ask = {"vectors": STATES.tolist(), "mode": "dense", "temperature": 0.3, "samples": 16}
    versions = len(remote.models(NAME).models)
    for seed in range(12):
        status, drawn = post(server, "draws", {**ask, "seed": seed, **({"draft": draft} if draft else {})})
        assert status == 200, drawn
        assert drawn["expires_s"] == 600
        assert {len(row[name]) for row in drawn["results"] for name in row} == {16}
        rewards = [[float(id[-1] in "1379") for id in row["ids"]] for row in drawn["results"]]
        body = {"rewards": rewards, "learning_rate": 0.02}
        status, answer = post(server, f"draws/{drawn['draw']}/rewards", body)
        assert status == 200, answer
        assert answer["mean_reward"] == pytest.approx(np.mean(rewards))
        assert "head" not in answer
        draft = answer["draft"]
        means.append(answer["mean_reward"])
        status, problem = post(server, f"draws/{drawn['draw']}/rewards", body)
        assert (status, problem["code"]) == (410, "gone")
    assert means[0] < 0.7
    assert np.mean(means[-3:]) > means[0] + 0.25
    assert draft is not None
    assert len(remote.models(NAME).models) == versions  # drafts are no versions; a client can make one of it
    tensors = remote.draft_tensors(NAME, draft)
    added = remote.add_model(NAME, tensors).model
    options: dict[str, Any] = {"vectors": STATES, "mode": "dense", "temperature": 0.3}
    by_draft = remote.attend(NAME, draft=draft, **options)
    by_version = remote.attend(NAME, model=added, **options)
    assert by_version.ids == by_draft.ids
    np.testing.assert_array_equal(by_version.weights, by_draft.weights)
    remote.delete_model(NAME, added)
    remote.drop_draft(NAME, draft)
    with pytest.raises(Gone):
        remote.draft_tensors(NAME, draft)


@pytest.mark.parametrize("model", ["v1", "v2", "v3"])
def test_both_clients_draw_and_learn_alike(remote: Client, local: LocalEngine, model: str) -> None:
    """Two heads, one head, and a head with hops."""
    results, rewarded = [], []
    for api in (remote, local):
        result = api.draw(NAME, TEXTS, samples=8, seed=4, model=model, dtype="float64", temperature=1.0)
        results.append(result)
        rewarded.append(api.reward(NAME, result.draw, paid(result), learning_rate=0.01, gradients=True))
    ours, theirs = results
    assert ours.stamp == theirs.stamp
    assert ours.stamp.model == model
    assert [row.ids for row in ours.results] == [row.ids for row in theirs.results]
    assert [row.positions for row in ours.results] == [row.positions for row in theirs.results]
    for one, other in zip(ours.results, theirs.results, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
    there, here = rewarded
    assert there.mean_reward == here.mean_reward
    assert there.states is not None
    assert here.states is not None
    np.testing.assert_allclose(there.states, here.states, atol=1e-9)
    assert there.head is not None
    assert here.head is not None
    assert here.head.keys() == there.head.keys()
    for name, tensor in here.head.items():
        np.testing.assert_allclose(there.head[name], tensor, atol=1e-9)
    assert there.draft is not None
    assert here.draft is not None
    learned, same = remote.draft_tensors(NAME, there.draft), local.draft_tensors(NAME, here.draft)
    for name, tensor in same.items():
        np.testing.assert_allclose(learned[name], tensor, atol=1e-5)
    moved = remote.head(NAME, model)
    assert any(np.abs(learned[name] - moved[name]).max() > 1e-4 for name in moved)


def test_malformed_requests_say_what_to_do(server: str, remote: Client) -> None:
    for body, text in [
        ({"queries": ["a"], "samples": 1}, "samples=1; use an integer from 2 to 64"),
        ({"samples": 4}, "neither queries nor vectors"),
        ({"queries": ["a"], "sample": 4}, "sample"),
    ]:
        status, problem = post(server, "draws", body)
        assert status == 422 or status == 400, problem
        assert text in problem["detail"]
    result = remote.draw(NAME, vectors=STATES, samples=2)
    for rewards, text in [
        ([[1.0, 0.0]], "rewards of 1 query for a draw of 2"),
        ([[1.0], [0.0]], "rewards.0 has 1 number for 2 documents"),
    ]:
        with pytest.raises(InvalidRequest, match=text):
            remote.reward(NAME, result.draw, rewards, gradients=True)
    with pytest.raises(InvalidRequest, match="neither learning_rate nor include"):
        remote.reward(NAME, result.draw, paid(result))
    with pytest.raises(Gone, match="draw again"):
        remote.reward(NAME, "0" * 24, paid(result), gradients=True)
