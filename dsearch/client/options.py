"""The options of searches and of attention, as both clients and the local engine take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from dsearch.attention_options import AttentionKeywords, SelectionKeywords
from dsearch.search_options import SearchKeywords
from dsearch.types import Stamp

Filter: TypeAlias = Mapping[str, Any]
"""What a document's metadata must meet: `{"year": {"gte": 2017}}`, with `and`, `or` and `not`."""


class FindOptions(SearchKeywords, total=False):
    """Options of a search, described by `dsearch.search_options.SearchOptions`, whose defaults apply.

    fields: names with commas between, or a list of them.
    explore: share of pages on which a coin swaps two documents, for feedback; servers only, as `partial`.
    episode: name of the task that the search belongs to, for `report_outcome`.
    """

    fields: str | Sequence[str] | None
    explore: float
    episode: str


class WayToAttend(AttentionKeywords, SelectionKeywords, total=False):
    """Options of attention, described by `dsearch.attention_options.AttentionOptions`, whose defaults apply.

    filter: condition on the documents' metadata.
    """

    score: str
    filter: Filter | None


class AttendOptions(WayToAttend, total=False):
    """`WayToAttend`, and model: a version; the live one when left out."""

    model: str | None


class DifferentiableOptions(AttendOptions, total=False):
    """`AttendOptions`, and dtype: what is computed in; stamp: the state to be asked, from an answer.

    ids: up to 64 ids of documents whose embeddings are the queries, in place of texts and vectors; draft: id
    of a draft head that answers in place of a version (`draft_head`); field: number of the metadata,
    or value, that is pooled in place of W_V e; with_head: tensors of a head that answers in place of the
    version's, named and shaped as `head` gives them; bias: a number for each position of the state that
    answers, added to the scores, whose gradient `vjp` gives; table: a row for each of them, pooled in place
    of W_V e, likewise.
    """

    dtype: Literal["float32", "float64"]
    stamp: Stamp | None
    ids: Sequence[str] | None
    draft: str | None
    field: str | None
    with_head: Mapping[str, Any] | None
    bias: Any
    table: Any


Part = Literal["keys", "values", "parts", "slopes", "positions", "texts"]
