"""Each option of a `RemoteSearch` goes with each of its requests, and with those of its copies.

The client is replaced by a recorder that answers every query alike.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from support.doors import HEAD, arrays, made_up

from dsearch.client import RemoteSearch, uploads
from dsearch.client.calls import WayToAttend
from dsearch.errors import Gone, InvalidRequest
from dsearch.results import Attention, DraftAdded, Gradients, Model, ModelAdded, Models
from dsearch.types import Stamp

OPTIONS = {**get_type_hints(WayToAttend)}
WAYS = ["answer", "slopes", "gradient", "again", "sequences", "with_model", "as_version", "deepcopy"]
STAMP = Stamp(3, "v7", 5)


class Recorder:
    """A client that notes what is asked of `attend` and `vjp`; a draft may be gone once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.drafts: list[str | None] = []
        self.gone = False

    def attend(self, collection: str, queries: Any, **options: Any) -> Attention:
        self.asked.append(("attend", {"collection": collection, "queries": queries, **options}))
        if self.gone:
            self.gone = False
            raise Gone("expired")
        batch = len(options["vectors"])
        zeros, by_head = np.zeros((batch, 2)), np.zeros((batch, 1, 2))
        more = {"slopes": np.zeros((batch, 1, 2, 4)), "values": np.zeros((batch, 2, 4))}
        return Attention(
            [["a", "b"]] * batch,
            STAMP,
            1,
            1.0,
            np.ones(1),
            np.zeros((batch, 4)),
            zeros,
            zeros,
            dense=by_head,
            keyword=by_head,
            head_weights=by_head,
            positions=np.array([[0, 1]] * batch),
            texts=[["a", "b"]] * batch,
            draft=options.get("draft"),
            **{name: more[name] for name in more if name in options["include"]},
        )

    def vjp(self, collection: str, queries: Any, **options: Any) -> Gradients:
        self.asked.append(("vjp", {"collection": collection, "queries": queries, **options}))
        table = options["table"]
        return Gradients(
            STAMP,
            np.zeros((len(options["vectors"]), 4)),
            {name: np.zeros_like(array) for name, array in HEAD.items()},
            bias=np.zeros(2) if "bias" in options else None,
            table=None if table is None else np.zeros_like(table),
        )

    def models(self, collection: str) -> Models:
        return Models("v7", [Model("v7", None, True, {})])

    def head(self, collection: str, version: str) -> dict[str, np.ndarray]:
        return HEAD

    def draft_head(self, collection: str, tensors: Any, *, parent: str | None) -> DraftAdded:
        self.drafts.append(parent)
        return DraftAdded(f"d{len(self.drafts)}", str(parent), 1, 60.0)


def asked(
    way: str,
    *,
    options: dict[str, Any] | None = None,
    forward: dict[str, Any] | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[tuple[str, dict[str, Any]]]:
    """The requests of one use of a layer."""
    client: Any = Recorder()
    own: Any = options or {}
    with_head = way in ("gradient", "again", "deepcopy")
    layer = RemoteSearch(client, "papers", train_head=with_head, **own)
    layer.bias = bias
    if way == "again":
        layer.sync()
        client.gone = True
    if way == "deepcopy":
        layer = copy.deepcopy(layer)
    if way in ("with_model", "as_version"):
        layer = getattr(layer, way)("v7")
    states = torch.full((1, 4), 0.5, dtype=dtype, requires_grad=way in ("slopes", "gradient"))
    texts: Any = ["cat"]
    given = {"texts": texts, **(forward or {})}
    if way == "sequences":
        states, given["texts"] = states[None], [given["texts"]]
    context = layer(states, **given).context
    if way == "gradient":
        context.sum().backward()
    return client.asked


def count(way: str) -> list[str]:
    return {"gradient": ["attend", "vjp"], "again": ["attend", "attend"]}.get(way, ["attend"])


@pytest.mark.parametrize("way", WAYS)
def test_each_option_goes_with_each_request(way: str) -> None:
    lost: list[str] = []
    assert [name for name, _ in asked(way)] == count(way)
    for name, kind in OPTIONS.items():
        value = made_up(name, kind)
        requests = asked(way, options={name: value})
        assert [called for called, _ in requests] == count(way)
        lost += [
            f"{called}: {name}={request.get(name)!r}"
            for called, request in requests
            if request.get(name) != value
        ]
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("with_model", "as_version")])
def test_what_a_call_gives_goes_with_each_request(way: str) -> None:
    table = torch.full((2, 4), 1 / 3, dtype=torch.float64, requires_grad=True)
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"forward": {"texts": ["dog"]}}, {"queries": ["dog"]}),
        ({"forward": {"values": "year"}}, {"field": "year"}),
        ({"forward": {"values": table}, "options": {"over": "all"}}, {"table": [[1 / 3] * 4] * 2}),
        ({"forward": {"values": table}}, {"table": None, "field": None}),  # the candidates' rows are here
        ({"bias": torch.tensor([0.25, 0.5])}, {"bias": [0.25, 0.5]}),
        ({"dtype": torch.float64}, {"dtype": "float64"}),
        ({}, {"dtype": "float32", "vectors": [[0.5] * 4], "collection": "papers"}),
    ]
    for given, expected in ways:
        for called, request in asked(way, **given):
            assert {name: arrays(request[name]) for name in expected} == expected, (called, given)


def test_texts_are_asked_for_where_they_are_wanted() -> None:
    for way in WAYS:
        for wanted in (False, True):
            for called, request in asked(way, forward={"with_texts": wanted}):
                assert called == "vjp" or ("texts" in request["include"]) == wanted, way


def test_the_version_that_answers_is_the_one_that_was_named() -> None:
    """Of a draft its parent; the gradient is asked of the state that answered, whatever is live by then."""
    client: Any = Recorder()
    layer = RemoteSearch(client, "papers", model="v5", train_head=True)
    layer(torch.zeros(1, 4))
    layer.sync()
    layer(torch.zeros(1, 4, requires_grad=True)).context.sum().backward()
    first, drafted, gradient = (request for _, request in client.asked)
    assert client.drafts == ["v5"]
    assert (first["model"], "draft" in first) == ("v5", False)
    assert (drafted["draft"], "model" in drafted) == ("d1", False)
    assert (gradient["model"], gradient["draft"], gradient["stamp"]) == (None, "d1", STAMP)
    assert gradient["head"] is True


def test_the_gradient_is_asked_as_the_answer_was() -> None:
    """Whatever else is sent with a question goes with its gradient."""
    every = {name: made_up(name, kind) for name, kind in OPTIONS.items()}
    given: dict[str, Any] = {"options": every, "forward": {"values": "year"}, "bias": torch.zeros(2)}
    (_, question), (_, gradient) = asked("gradient", **given)
    own = {"include", "model"}
    assert {name: arrays(gradient[name]) for name in question.keys() - own} == {
        name: arrays(value) for name, value in question.items() if name not in own
    }


def test_a_bias_is_in_no_version_and_a_layer_with_one_makes_none() -> None:
    client: Any = Recorder()
    layer = RemoteSearch(client, "papers", train_head=True)
    layer.bias = torch.zeros(2)
    for make in (layer.publish, lambda: uploads.savable_layer(torch.nn.DataParallel(layer))):
        with pytest.raises(InvalidRequest, match="bias"):
            make()
    layer.bias = None
    assert uploads.savable_layer(torch.nn.DataParallel(layer)) is layer


def test_a_draft_that_was_released_answers_no_more_and_a_published_version_is_the_next_parent() -> None:
    client: Any = Recorder()
    dropped: list[str] = []
    parents: list[str | None] = []

    def add_model(collection: str, tensors: Any, *, parent: str | None, record: Any) -> ModelAdded:
        parents.append(parent)
        return ModelAdded(f"v{8 + len(parents)}", str(parent), 1)

    client.drop_draft = lambda collection, draft: dropped.append(draft)
    client.add_model = add_model
    layer = RemoteSearch(client, "papers", model="v5", train_head=True)
    layer.sync()
    layer.release()
    layer.release()
    assert dropped == ["d1"]
    layer(torch.zeros(1, 4))
    _, request = client.asked.pop()
    assert (request["model"], "draft" in request) == ("v5", False)
    assert (layer.publish(), layer.publish()) == ("v9", "v10")
    assert parents == ["v5", "v9"]
    layer.sync()
    assert client.drafts == ["v5", "v10"]


def test_a_state_that_is_gone_is_told_where_no_draft_answers() -> None:
    client: Any = Recorder()
    client.gone = True
    with pytest.raises(Gone, match="expired"):
        RemoteSearch(client, "papers", train_head=True)(torch.zeros(1, 4))
    assert client.drafts == []


def test_a_layer_as_the_version_that_it_became_has_the_encoder_that_learned() -> None:
    client: Any = Recorder()
    layer = RemoteSearch(client, "papers")
    learned: Any = torch.nn.Identity()
    layer.encoder = learned
    assert layer.as_version("v7").encoder is learned
    assert layer.with_model("v7").encoder is None


def test_each_query_has_gradients_of_as_many_candidates_as_it_has() -> None:
    class Uneven(Recorder):
        def attend(self, collection: str, queries: Any, **options: Any) -> Attention:
            answer = super().attend(collection, queries, **options)
            return replace(answer, ids=[["a"], ["a", "b"]], positions=np.array([[0, -1], [0, 1]]))

    client: Any = Uneven()
    found = RemoteSearch(client, "papers", train_head=True)(torch.zeros(2, 4, requires_grad=True))
    (found.context.sum() + found.weights.sum()).backward()
    name, gradient = client.asked[-1]
    assert name == "vjp"
    assert [[len(row) for row in gradient[part]] for part in ("weights", "scores")] == [[1, 2], [1, 2]]
