"""Which encoders give embeddings that can be compared, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsearch.encoder import EncoderIdentity, tuned_identity
from dsearch.errors import CorruptData, EncoderMismatch

OWN = EncoderIdentity("small", "", "abc", "mean", 256, "torch", "float32", 384)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (OWN, True),
        (replace(OWN, name="another name of it"), True),
        (replace(OWN, backend="onnx"), True),
        (replace(OWN, dtype="bfloat16", backend="openvino"), True),
        (replace(OWN, dtype="int8"), False),
        (replace(OWN, revision="r1"), False),
        (replace(OWN, weights_sha256="abd"), False),
        (replace(OWN, pooling="cls"), False),
        (replace(OWN, max_tokens=512), False),
        (replace(OWN, dimension=768), False),
    ],
)
def test_only_name_and_what_computes_may_differ(other: EncoderIdentity, same: bool) -> None:
    assert OWN.same(other) is same
    assert other.same(OWN) is same


def test_a_refusal_names_each_difference_and_what_to_do() -> None:
    with pytest.raises(EncoderMismatch) as refused:
        OWN.require_same(replace(OWN, name="large", dimension=768, max_tokens=512), "papers")
    assert str(refused.value).startswith(
        "collection 'papers' was encoded by 'small', not by this 'large': max_tokens 256 there, 512 here; "
        "dimension 384 there, 768 here; use --encoder small, or encode it again"
    )
    digest = "ab" * 32
    with pytest.raises(EncoderMismatch, match="weights_sha256 'abc' there, 'abababababab…' here"):
        OWN.require_same(replace(OWN, weights_sha256=digest), "papers")
    hint = refused.value.to_dict()["hint"]
    assert (hint["name"], list(hint["arguments"])) == ("migrate", ["-c", "papers", "--encoder", "large"])
    eight = replace(OWN, dtype="int8", backend="onnx")
    with pytest.raises(EncoderMismatch, match="computes in int8 any more: search by words") as refused:
        eight.require_same(OWN, "papers")
    assert refused.value.to_dict()["hint"]["name"] == "migrate"


def test_it_is_stored_and_read_back() -> None:
    stored = OWN.to_dict()
    assert EncoderIdentity.from_dict({**stored, "of a newer release": 1}) == OWN
    del stored["pooling"], stored["backend"]
    with pytest.raises(CorruptData, match="lacks backend, pooling"):
        EncoderIdentity.from_dict(stored)


def test_a_trained_encoder_is_of_the_weights_that_it_started_from_and_of_its_change() -> None:
    own = tuned_identity(OWN, "1" * 64)
    assert own.weights_sha256 not in (OWN.weights_sha256, "1" * 64)
    assert tuned_identity(OWN, "2" * 64).weights_sha256 != own.weights_sha256
    assert tuned_identity(replace(OWN, weights_sha256="abd"), "1" * 64).weights_sha256 != own.weights_sha256


@pytest.mark.parametrize(
    ("backend", "dtype", "trained"),
    [
        ("openvino", "bfloat16", ("torch", "bfloat16")),
        ("remote", "float32", ("remote", "float32")),
    ],
)
def test_a_trained_encoder_runs_by_torch(backend: str, dtype: str, trained: tuple[str, str]) -> None:
    own = tuned_identity(replace(OWN, backend=backend, dtype=dtype), "1" * 64)
    assert (own.backend, own.dtype) == trained
