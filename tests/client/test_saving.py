"""`save_model` of the clients: a layer trained here is judged and kept there, as by the engine itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.patience import LATEST_S
from support.service.service_fakes import WORDS, WordEncoder

import dsearch
from dsearch.attention.scores import AdditiveScore
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.errors import Gone, InvalidRequest
from dsearch.jobs import ExampleScores, JudgedQueries
from dsearch.results import Task
from dsearch.types import Document

pytestmark = pytest.mark.server

# Questions and answers share no word; each question has an answer of its own.
TOPICS = [" ".join(pair) for pair in itertools.combinations(sorted(set(WORDS)), 2)][:16]
ANSWERS = [Document(f"a{i:02d}", f"this{i} that{i}") for i in range(len(TOPICS))]
QUERIES = {f"q{i:02d}": topic for i, topic in enumerate(TOPICS)}
JUDGED = {f"q{i:02d}": {f"a{i:02d}": 1.0} for i in range(len(TOPICS))}
STATES = torch.as_tensor(WordEncoder().encode_queries(TOPICS))
EVIDENCE = JudgedQueries(QUERIES, JUDGED)
names = (f"own{number}" for number in itertools.count())


@pytest.fixture
def name(remote: Client, local: LocalEngine) -> Iterator[str]:
    """A collection that the server and the engine of this process both have, for one test."""
    given = next(names)
    for api in (remote, local):
        api.create_collection(given)
        api.upsert(given, ANSWERS)
    yield given
    for api in (remote, local):
        api.delete_collection(given)


def likelihood(weights: torch.Tensor, ids: list[list[str]]) -> torch.Tensor:
    """log weight of each question's answer."""
    right = [[id == f"a{i:02d}" for id in line] for i, line in enumerate(ids)]
    return (weights * torch.tensor(right)).sum(1).clamp_min(1e-9).log()


def learn(layer: Any, forward: Callable[[], torch.Tensor], steps: int, rate: float = 0.05) -> list[float]:
    optimizer, seen = torch.optim.SGD(layer.parameters(), lr=rate), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -forward().mean()
        loss.backward()
        optimizer.step()
        if isinstance(layer, RemoteSearch):
            layer.sync()
        seen.append(loss.item())
    return seen


def remote_layer(client: Client | LocalEngine, name: str, **options: Any) -> RemoteSearch:
    return RemoteSearch(client, name, train_head=True, mode="dense", **options)


def score(layer: RemoteSearch) -> torch.Tensor:
    out = layer(STATES)
    return likelihood(out.weights, out.ids)


def done(client: Client | LocalEngine, task: Task) -> dict[str, Any]:
    task = client.wait_for_task(task.id, every_s=0.05, timeout_s=LATEST_S)
    assert (task.kind, task.state) == ("save", "done"), task.problem
    assert task.result is not None
    return task.result


def test_a_loss_sent_through_http_trains_the_head_that_it_trains_here(
    remote: Client, local: LocalEngine, name: str
) -> None:
    over_http = remote_layer(remote, name)
    collection = local.engine.collection(name)
    here = dsearch.open_layer(local.engine, name, mode="dense").double()
    doubled = STATES.double()

    def sent() -> torch.Tensor:
        out = over_http(doubled)
        return likelihood(out.weights, out.ids)

    def local_loss() -> torch.Tensor:
        out = here(doubled)
        return likelihood(out.weights, collection.ids_at(here.snapshot, out.positions))

    there, at_home = learn(over_http, sent, 6), learn(here, local_loss, 6)
    assert at_home[-1] < at_home[0] - 0.1
    torch.testing.assert_close(there, at_home, rtol=1e-6, atol=1e-6)
    wanted = dict(here.head.named_parameters())
    assert over_http.head is not None
    for parameter_name, parameter in over_http.head.named_parameters():
        close = wanted[parameter_name].float()
        torch.testing.assert_close(parameter, close, rtol=0, atol=1e-6, msg=parameter_name)
    assert [one.version for one in remote.models(name).models] == ["v0"]  # six steps, and no version
    over_http.release()
    assert [one.version for one in remote.models(name).models] == ["v0"]
    assert (over_http.model, over_http.version) == ("v0", "v0")


def test_judgements_decide_there_as_here(remote: Client, local: LocalEngine, name: str) -> None:
    results = []
    for api in (remote, local):
        layer = remote_layer(api, name)
        learn(layer, lambda layer=layer: score(layer), 12, rate=0.5)
        task = api.save_model(name, layer, evidence=EVIDENCE, record={"loss": "marginal"}, seed=1)
        results.append(done(api, task))
        models = api.models(name)
        assert [one.version for one in models.models] == ["v0", results[-1]["model"]]
        record = models.models[-1].record
        assert (record["scope"], record["uploaded"]) == ("layer", {"loss": "marginal"})
        assert models.models[-1].parent == "v0"
        assert models.live == results[-1]["model"]
    assert results[0]["gate"]["verdict"] == "passed"
    assert set(results[0]) == set(results[1])
    for part in ("gate", "reason", "model", "live", "examples", "left_out"):
        assert results[0][part] == results[1][part], part
    hits = [api.search(name, TOPICS[0], limit=1, mode="dense").hits[0].id for api in (remote, local)]
    assert hits == ["a00", "a00"]
    assert remote.rollback(name).model == "v0"


def test_a_function_scores_both_versions_over_http(remote: Client, name: str) -> None:
    layer = remote_layer(remote, name)
    learn(layer, lambda: score(layer), 12, rate=0.5)
    saved = done(remote, remote.save_model(name, layer, evidence=score, measure="log-likelihood"))
    assert saved["live"] is True
    assert saved["gate"]["measure"] == "log-likelihood"
    assert [one.version for one in remote.models(name).models] == ["v0", saved["model"]]
    worse = remote_layer(remote, name, model="v0")
    refused = done(remote, remote.save_model(name, worse, evidence=score))
    assert refused["live"] is False
    assert "it did not rise" in refused["reason"]


def test_a_function_scores_what_is_saved_and_not_what_was_synchronised_before(
    remote: Client, name: str
) -> None:
    layer = remote_layer(remote, name)
    beginning = {key: value.clone() for key, value in layer.state_dict().items()}
    learn(layer, lambda: score(layer), 12, rate=0.5)
    layer.load_state_dict(beginning)
    refused = done(remote, remote.save_model(name, layer, evidence=score))
    assert (refused["live"], "it did not rise" in refused["reason"]) == (False, True)


def test_a_layer_of_a_folder_and_bare_tensors(remote: Client, local: LocalEngine, name: str) -> None:
    layer = dsearch.open_layer(local.engine, name, mode="dense")
    assert done(remote, remote.save_model(name, layer, accept=True))["live"] is True
    tensors = remote.head(name, "v1")
    scores = ExampleScores([0.1 * i for i in range(12)], [0.1 * i + 1 + 0.01 * i for i in range(12)])
    for api in (remote, local):
        saved = done(api, api.save_model(name, tensors, evidence=scores, parent="v0", promote=False))
        assert (saved["live"], saved["parent"]) == (False, "v0")
        assert saved["gate"]["verdict"] == "passed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evidence": ExampleScores([1.0], [1.0, 2.0])}, "1 scores before and 2 after"),
        ({"measure": "x"}, "measure names the score of a function"),
        ({"evidence": lambda _: [1.0]}, "give a layer of dsearch.open_layer or a RemoteSearch"),
        ({"parent": "v77"}, "v77"),
        ({"risk": "reckless"}, "cautious, balanced, bold"),
        ({"record": {"a": object()}}, "not JSON"),
    ],
)
def test_what_is_refused_is_refused_at_once(remote: Client, given: dict[str, Any], message: str) -> None:
    with pytest.raises(dsearch.DsearchError) as caught:
        remote.save_model("papers", remote.head("papers", "v0"), **given)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_layer_without_what_is_needed_says_so(remote: Client) -> None:
    layer = RemoteSearch(remote, "papers")
    layer.sync()
    with pytest.raises(InvalidRequest, match="make it with train_head=True"):
        remote.save_model("papers", layer)
    with pytest.raises(InvalidRequest, match="make it with encoder="):
        layer.query_states(["river"])
    with pytest.raises(InvalidRequest, match="encoder_training without an encoder"):
        RemoteSearch(remote, "papers", encoder_training="lora")
    given = RemoteSearch(remote, "papers", encoder=WordEncoder())
    assert given.query_states(["river"]).shape == (1, 32)


def test_a_draft_that_is_gone_is_handed_in_again(remote: Client, name: str) -> None:
    layer = RemoteSearch(remote, name, mode="dense", train_head=True, candidates=4)
    assert layer.head is not None
    with torch.no_grad():
        layer.head.key_delta += 0.1
    layer.sync()
    state = torch.nn.functional.normalize(torch.ones(1, 32), dim=1)
    before = layer(state)
    draft = remote.draft_head(name, remote.head(name, "v0"))
    assert (draft.parent, draft.expires_s) == ("v0", 600.0)
    for _ in range(8):  # as many as a key may have: that of the layer makes room
        remote.draft_head(name, remote.head(name, "v0"))
    after = layer(state)
    assert before.ids == after.ids
    torch.testing.assert_close(before.weights, after.weights)
    with pytest.raises(Gone):
        remote.attend(name, vectors=state.numpy(), draft=draft.draft)
    layer.release()
    assert [one.version for one in remote.models(name).models] == ["v0"]


def test_a_layer_keeps_its_learned_score_there_as_here(remote: Client, local: LocalEngine, name: str) -> None:
    """A score beside the head is part of the version that a client saves."""
    torch.manual_seed(5)
    own = AdditiveScore(32, 32, 8)
    layer = dsearch.open_layer(local.engine, name, mode="dense", score=own)
    expected = layer(STATES)
    for api in (remote, local):
        saved = done(api, api.save_model(name, layer, evidence=None))
        tensors = api.head(name, saved["model"])
        assert any(one.startswith("score.") for one in tensors)
        answer = RemoteSearch(api, name, model=saved["model"], mode="dense")(STATES)
        torch.testing.assert_close(answer.weights, expected.weights, rtol=1e-5, atol=1e-6)
        assert answer.ids == expected.ids
    with pytest.raises(InvalidRequest, match="a version can have AdditiveScore"):
        remote.save_model(name, dsearch.open_layer(local.engine, name, score=torch.nn.Bilinear(32, 32, 1)))


def test_a_head_in_the_request_answers_like_its_draft(remote: Client, local: LocalEngine, name: str) -> None:
    layer = remote_layer(remote, name)
    learn(layer, lambda: score(layer), 2, rate=0.5)
    assert layer.head is not None
    tensors = {one: tensor.numpy() for one, tensor in layer.head.state_dict().items()}
    states, context = STATES[:3].numpy(), [[1.0] * 32] * 3
    draft = remote.attend(name, vectors=states, draft=remote.draft_head(name, tensors).draft)
    for api in (remote, local):
        sent = api.attend(name, vectors=states, with_head=tensors)
        assert (sent.ids, sent.stamp, sent.draft) == (draft.ids, draft.stamp, None)
        np.testing.assert_array_equal(sent.weights, draft.weights)
        asked = {"vectors": states, "context": context, "stamp": sent.stamp}
        gradients = api.vjp(name, **asked, with_head=tensors)
        wanted = remote.vjp(name, **asked, draft=draft.draft)
        np.testing.assert_array_equal(gradients.states, wanted.states)
        assert set(gradients.head) == {one for one, _ in layer.head.named_parameters()}
        for wrong in (
            {},
            {"query_delta": [[1.0]]},
            {**tensors, "query_delta": "x"},
            {"query_out": [[1], [1, 2]]},
        ):
            with pytest.raises(InvalidRequest):
                api.attend(name, vectors=states, with_head=wrong)
        with pytest.raises(InvalidRequest, match="a draft and with_head"):
            remote.attend(name, vectors=states, with_head=tensors, draft=draft.draft)
    assert [one.version for one in remote.models(name).models] == ["v0"]
