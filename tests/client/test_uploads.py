"""What a client sends of a version that was trained here, and what it refuses to send."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.client.uploads import Upload, clean_up, evidence_by, kept_version, model_file, upload_of
from dsearch.client.wire import tensors_of
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.errors import InvalidRequest
from dsearch.jobs import ExampleScores


def sent(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Description of the tensors and the request in the body of an upload."""
    (size,) = struct.unpack_from("<Q", body)
    described = json.loads(body[8 : 8 + size])
    return described, json.loads(described.pop("__metadata__")["request"])


def test_only_what_was_given_is_sent() -> None:
    upload = Upload({"w": np.ones((2, 3))[:, ::-1].T}, None, "v3")
    described, request = sent(
        model_file(upload, None, {"loss": 0.5}, {"promote": False, "alpha": None}).read()
    )
    assert (described["w"]["dtype"], described["w"]["shape"]) == ("F32", [3, 2])
    assert request == {"parent": "v3", "record": {"loss": 0.5}, "promote": False}
    assert sent(model_file(Upload({}, None, None), None, None, {}).read())[1] == {}


@pytest.mark.parametrize("record", [{"loss": float("nan")}, {"loss": float("inf")}, {"loss": {1, 2}}])
def test_a_record_that_is_no_json_is_refused_here(record: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"not JSON .*; give text, finite numbers, lists and objects"):
        model_file(Upload({}, None, None), None, record, {})


def test_parent_and_encoder_are_those_of_the_layer_unless_given() -> None:
    layer: Any = SimpleNamespace(head=Head(4), encoder=None, version="v2")
    assert upload_of(layer, None, None).parent == "v2"
    assert upload_of(layer, None, "v1").parent == "v1"
    own, given = (EncoderChange(EncoderTraining("lora"), {}) for _ in range(2))
    layer.encoder = own
    assert upload_of(layer, None, None).encoder is own
    assert upload_of(layer, given, None).encoder is given
    tensors = upload_of(Head(4, heads=2), None, None)
    assert (tensors.parent, tensors.encoder) == (None, None)
    assert {name: value.shape for name, value in tensors.head.items()} == {
        name: tuple(value.shape) for name, value in upload_of({**tensors.head}, None, None).head.items()
    }
    with pytest.raises(InvalidRequest, match="a layer without a head; make it with train_head=True"):
        upload_of(torch.nn.Linear(2, 2), None, None)


def test_numbers_of_an_encoder_are_sent_as_they_are() -> None:
    third = torch.tensor([1 / 3, 1e-9])
    change = EncoderChange(EncoderTraining("lora"), {"a": third})
    facts, tensors = tensors_of(model_file(Upload({"w": np.ones(1)}, change, None), None, None, {}).read())
    assert facts is None
    assert tensors["query_encoder/a"].tolist() == third.tolist()
    assert tensors["w"].tolist() == [1.0]


def test_a_version_is_kept_first_where_its_documents_are_encoded() -> None:
    layer: Any = SimpleNamespace(as_version=None)
    for options in ({}, {"encode_documents": False}):
        assert kept_version(layer, lambda of: [1.0], None, options) is None
    pending = kept_version(layer, lambda of: [1.0], None, {"encode_documents": True})
    assert pending is not None
    assert (pending.layer, pending.measure) == (layer, "score")


class Layer(torch.nn.Module):
    """A layer that is opened for other versions, and knows when it is synchronised."""

    def __init__(self, version: str = "trained"):
        super().__init__()
        self.version, self.synced, self.released = version, False, False

    def with_model(self, version: str) -> Layer:
        return Layer(version)

    def sync(self) -> None:
        self.synced = True

    def release(self) -> None:
        self.released = True


def test_a_function_scores_the_live_version_and_then_the_trained_one() -> None:
    layer: Any = Layer()
    scores = {"trained": [0.75, 1.0], "v5": [0.25, 0.5]}
    evidence = evidence_by(layer, lambda of: scores[of.version], "accuracy", lambda: "v5")
    assert isinstance(evidence, ExampleScores)
    assert (list(evidence.before), list(evidence.after)) == (scores["v5"], scores["trained"])
    assert evidence.measure == "accuracy"
    assert layer.synced
    unnamed = evidence_by(layer, lambda of: scores[of.version], None, lambda: "v5")
    assert isinstance(unnamed, ExampleScores)
    assert unnamed.measure == "score"
    clean_up(layer)
    assert layer.released
    clean_up({})  # nothing to release


def test_a_name_for_scores_goes_with_a_function_alone() -> None:
    assert evidence_by({}, None, None, lambda: "v0") is None
    with pytest.raises(InvalidRequest, match="measure names the score of a function"):
        evidence_by({}, None, "accuracy", lambda: "v0")
    with pytest.raises(InvalidRequest, match="a function as evidence scores layers"):
        evidence_by({}, lambda _: [1.0], None, lambda: "v0")
