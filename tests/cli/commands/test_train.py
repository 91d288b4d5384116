"""A training over shards refuses at once what shards cannot learn or answer with."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.cli.commands.train import _require_trainable_over_shards
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob


@pytest.mark.parametrize(
    ("chosen", "flags"),
    [
        ({"source": "clicks"}, "--from clicks"),
        ({"scope": "full"}, "--scope full"),
        ({"null_slot": True}, "--null-slot"),
        ({"precision": "bfloat16"}, "--precision bfloat16"),
        ({"field": "year", "objective": "value"}, "--objective value"),
        ({"scope": "query", "null_slot": True}, "--scope query, --null-slot"),
    ],
)
def test_what_cannot_be_learned_is_named_by_its_flags(chosen: dict[str, Any], flags: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _require_trainable_over_shards(TrainingJob(**chosen))
    assert str(refused.value) == (
        f"--ray trains a head from judgements or the corpus; leave out {flags}, or train without --ray"
    )


@pytest.mark.parametrize("chosen", [{}, {"scope": "head", "precision": "float32", "seed": 3}])
def test_a_head_is_learned(chosen: dict[str, Any]) -> None:
    _require_trainable_over_shards(TrainingJob(**chosen))
