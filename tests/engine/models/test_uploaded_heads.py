"""Whatever bytes are handed in as a head: they are one, or refused in words."""

from __future__ import annotations

from contextlib import suppress

import pytest
from safetensors.torch import load, save
from support.engine.head_mutations import RECORDS, heads, mutations
from support.sizes import by_size

from dsearch.engine.models.tensors import MAX_RECORD_DEPTH, head_from_bytes
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.store.sqlite.digest import canonical_json

DIMENSION = 8


def test_mutated_bodies_are_heads_or_refused() -> None:
    read = 0
    for body in mutations(DIMENSION, by_size(1500, 40_000)):
        with suppress(InvalidRequest, DimensionMismatch):
            _, record = head_from_bytes(body, DIMENSION)
            assert canonical_json(record).encode()  # it can be stored
            read += 1
    assert read > 100


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record[:20])
def test_a_record_is_stored_as_it_is_or_refused(record: str) -> None:
    body = save(load(heads(DIMENSION)[0]), metadata={"record": record})
    with suppress(InvalidRequest):
        canonical_json(head_from_bytes(body, DIMENSION)[1]).encode()


@pytest.mark.parametrize(("levels", "allowed"), [(MAX_RECORD_DEPTH, True), (MAX_RECORD_DEPTH + 1, False)])
def test_a_record_may_be_nested_so_deep(levels: int, allowed: bool) -> None:
    record = '{"a":' * levels + "1" + "}" * levels
    body = save(load(heads(DIMENSION)[0]), metadata={"record": record})
    if allowed:
        assert head_from_bytes(body, DIMENSION)[1]
        return
    with pytest.raises(InvalidRequest, match=r"a record that is no JSON object of at most 64 levels"):
        head_from_bytes(body, DIMENSION)
