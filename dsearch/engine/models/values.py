"""Learned values of a version: the projections W_V, W_O and b, on which no ranking depends.

A version that learned the values of a field names the field in its record. A version that is made from
another one, or replaces it, takes over its values, unless it has values of its own or embeds the documents
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from dsearch.attention.retrieval.head import Head

SCOPE = "values"  # in the record of a version that changed nothing else
READOUT = "readout"  # in a record: field, kind and labels of the learned values


def with_values(
    head: Head, record: Mapping[str, Any], given: Head, given_record: Mapping[str, Any]
) -> tuple[Head, dict[str, Any]]:
    """Return a head and its record with the values of another version, unless it has values of its own."""
    record = dict(record)
    if READOUT in record or not _has_values(given):
        return head, record
    if not _has_values(head):
        head = head.valuing(given)
    elif not _same_values(head, given):
        return head, record
    if READOUT in given_record:
        record[READOUT] = given_record[READOUT]
    return head, record


def _has_values(head: Head) -> bool:
    return head.output is not None or bool(head.value_delta.any())


def _same_values(head: Head, other: Head) -> bool:
    if (head.output is None) != (other.output is None):
        return False
    pairs = [(head.value_delta, other.value_delta)]
    if head.output is not None and other.output is not None:
        pairs += [(head.output.weight, other.output.weight), (head.output.bias, other.output.bias)]
    return all(_equal(*pair) for pair in pairs)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one.detach().cpu() == other.detach().cpu()).all())
