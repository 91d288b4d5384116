"""Heads by version: loaded once, as a module and in NumPy, with one memory; forgotten with their version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection
from dsearch.engine.models.files import load_fixed_head, load_head
from dsearch.engine.state import caches as module
from dsearch.engine.state.caches import HeadCache
from dsearch.errors import ModelNotFound


def remembering() -> Head:
    head = Head(32)
    states = np.eye(2, 32, dtype=np.float32)
    at = np.arange(2)
    head.memory = QueryMemory(states, states, at + 1, at, at, np.ones(2), texts=["one", "two"])
    return head.eval()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read from the disk."""
    read: list[str] = []
    for name, load in (("load_head", load_head), ("load_fixed_head", load_fixed_head)):

        def noted(*given, name=name, load=load):
            read.append(f"{name} {given[1]}")
            return load(*given)

        monkeypatch.setattr(module, name, noted)
    return read


def test_a_version_is_read_once_and_again_when_it_was_forgotten(
    collection: Collection, loads: list[str]
) -> None:
    versions = [collection.add_model(Head(32), {}) for _ in range(2)]
    heads = HeadCache(collection.store)
    for _ in range(2):
        for version in ("v0", *versions):
            assert heads.of(version) is heads.of(version)
            assert heads.fixed(version) is heads.fixed(version)
    whole = [
        f"{name} {version}" for version in ("v0", "v1", "v2") for name in ("load_fixed_head", "load_head")
    ]
    assert loads == whole
    of, fixed, other = heads.of("v1"), heads.fixed("v1"), heads.of("v2")
    heads.drop("v1")
    heads.drop("v9")
    assert heads.of("v1") is not of
    assert heads.fixed("v1") is not fixed
    assert heads.of("v2") is other


def test_a_deleted_version_is_gone_in_both_forms(collection: Collection) -> None:
    heads = HeadCache(collection.store)
    version = collection.add_model(Head(32), {})
    heads.of(version)
    collection.delete_model(version)
    heads.drop(version)
    with pytest.raises(ModelNotFound):
        heads.fixed(version)
    with pytest.raises(ModelNotFound):
        heads.of(version)


def test_both_forms_share_one_memory(collection: Collection) -> None:
    version = collection.add_model(remembering(), {})
    heads = HeadCache(collection.store)
    head, fixed = heads.of(version), heads.fixed(version)
    assert isinstance(fixed, FixedHead)
    assert head.memory is not None
    assert np.shares_memory(head.memory.keys.numpy(), fixed.memory.keys)
    assert head.memory.texts == fixed.memory.texts == ["one", "two"]


def test_a_head_with_a_part_of_torch_has_no_form_in_numpy(collection: Collection, loads: list[str]) -> None:
    scored = Head(32)
    scored.score = new_score("general", 32)
    version = collection.add_model(scored.eval(), {})
    heads = HeadCache(collection.store)
    assert heads.fixed(version) is None
    assert heads.fixed(version) is None
    assert heads.of(version).learned_score is not None
    assert loads == [f"load_fixed_head {version}", f"load_head {version}"]


def test_what_was_loaded_under_inference_mode_can_learn(collection: Collection) -> None:
    version = collection.add_model(Head(32), {})
    with torch.inference_mode():
        head = HeadCache(collection.store).of(version)
    assert not any(parameter.is_inference() for parameter in head.parameters())
