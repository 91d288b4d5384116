"""The declaration of the options of a search.

Every option is declared here once, with its default, its help and the values that are allowed. The command
line (`dsearch search`), the HTTP schema (`POST …/search`), the engine and the Python clients take theirs from
here; a new option is a field of `SearchOptions`, a line of `SearchKeywords` for type checkers, and its use in
engine/search/.

This module is light: it imports neither torch nor the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypedDict, get_args

from dsearch.declared import option, options_of, suggestion
from dsearch.errors import InvalidRequest, amount
from dsearch.fields import EpisodeName, Filter
from dsearch.types import Mode

MODES: tuple[str, ...] = get_args(Mode)
MAX_LIMIT = 1000
MAX_OFFSET = 10_000
MAX_CURSOR_CHARACTERS = 512
MAX_HOPS = 4
MAX_FIELD_CHARACTERS = 1024
MAX_EXPLORE = 0.2  # share of pages
MAX_ARRANGED = 32  # queries of one call: the fields and embeddings of their candidates are read
# Hits of one call that can be explained or highlighted: each costs a look at its text.
MAX_DETAILED = 1000
# Up to this many documents the exact softmax costs less than the encoder: it is computed by default.
COVERAGE_DOCUMENTS = 20_000
RERANK_CANDIDATES = 50
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes of a command line that are not UTF-8
MAX_RERANK_CANDIDATES = 1000
_SCORES = {"low": -1e9, "high": 1e9, "allowed": "a number from -1e9 to 1e9"}


class SearchKeywords(TypedDict, total=False):
    """The options of `SearchOptions` as keyword arguments; a test compares the two."""

    limit: int
    offset: int
    cursor: str | None
    filter: Any
    operators: bool
    mode: Mode
    model: str | None
    hops: int | None
    hop_strength: float | None
    score_threshold: float | None
    weight_threshold: float | None
    explain: bool
    highlight: bool
    partial: bool
    candidates: int | None
    stages: int | None
    rerank_candidates: int
    highlight_by: str
    group_by: str | None
    collapse: bool
    diversity: float
    sort: str | None
    typos: bool


def joined_names(names: object) -> object:
    """Return a list of names as one text with commas between, anything else as it is."""
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return ",".join(names)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        filter: condition on metadata: {field: {condition: value}}, with eq, ne, gt, gte, lt, lte, in, nin and
            exists, under and, or and not; dots lead into objects.
        coverage: whether to compute covered mass; on small collections when None. Of the engine alone.
    """

    limit: int = option(
        10,
        "number of hits; fewer if there are fewer documents",
        low=1,
        high=MAX_LIMIT,
        flag="-k --limit",
        ranks=False,
    )
    offset: int = option(0, "number of hits to skip", low=0, high=MAX_OFFSET, ranks=False)
    cursor: str | None = option(
        None,
        "cursor of the next page, from the page before, in place of an offset: the same ranking goes on",
        longest=MAX_CURSOR_CHARACTERS,
        allowed="the next_cursor of an answer",
        ranks=False,
    )
    filter: Filter | None = None
    operators: bool = option(
        True,
        'whether "phrases" and +terms must, and -terms must not, be in a document; if not, quotes and signs '
        "are ordinary characters",
        flag="--operators/--plain",
    )
    mode: Mode = option(  # noqa: RUF009
        "hybrid",
        "legs of the search: hybrid (meaning and words), dense (meaning) or keyword (words)",
        choices=MODES,
        allowed="hybrid, dense or keyword",
    )
    model: str | None = option(
        None,
        "version of the model; the live one by default",
        pattern=r"^v[0-9]{1,9}$",
        allowed="a registered version such as v1; v0 is untrained",
    )
    hops: int | None = option(
        None,
        "rounds of search; from the second on, hits refine the query; the model's own by default",
        low=1,
        high=MAX_HOPS,
    )
    hop_strength: float | None = option(
        None, "how far a later round turns the query; the model's own by default", low=0, high=10
    )
    score_threshold: float | None = option(None, "leave out hits of a lower score", **_SCORES)
    weight_threshold: float | None = option(None, "leave out hits of a lower weight", **_SCORES)
    explain: bool = option(False, "show the parts of every score", ranks=False)
    highlight: bool = option(False, "show the pieces that contain the query's words", ranks=False)
    highlight_by: str = option(
        "words",
        "what highlight shows: the query's words, or what the tokens say means the same (meaning)",
        choices=("words", "meaning"),
        ranks=False,
    )
    partial: bool = option(
        False,
        "in a cluster: answer without shards that are down, with the share of the documents that is missing, "
        "rather than fail",
        cli=False,
        ranks=False,
    )
    candidates: int | None = option(
        None,
        "documents that each leg proposes for each head: weights are shares among them, whatever the limit, "
        "and hits end with them; by default 100, and further pages list more, weighed on the same scale",
        low=1,
        high=MAX_LIMIT + MAX_OFFSET,
    )
    stages: int | None = option(
        None,
        "1: scores of embedding and words alone; 2: the best candidates are ranked again by their tokens, in "
        "a collection that keeps them; the model's own by default",
        low=1,
        high=2,
    )
    rerank_candidates: int = option(
        RERANK_CANDIDATES,
        "candidates that a second stage looks at; none of the others ranks above them",
        low=1,
        high=MAX_RERANK_CANDIDATES,
    )
    group_by: str | None = option(
        None,
        "metadata field of whose equal values only the best hit is shown; documents without it all are",
        longest=MAX_FIELD_CHARACTERS,
        allowed="a metadata field such as author.name",
    )
    collapse: bool = option(
        False,
        "whether of documents with the same text only the best is shown, with the number of the others among "
        "the candidates",
    )
    diversity: float = option(
        0.0,
        "how much a hit that is like an earlier one is put off, 0 to 1 (maximal marginal relevance)",
        low=0,
        high=1,
    )
    sort: str | None = option(
        None,
        "metadata field that orders the candidates in place of their scores, such as year; -year is "
        "descending; equal values by id, documents without the field last; scores and weights stay",
        longest=MAX_FIELD_CHARACTERS,
        allowed="a metadata field such as year or author.name, with - before it for descending",
        json={"examples": ["-year"]},
    )
    fields: str | None = option(
        None,
        "what hits carry of their documents, with commas between: title, text (with its passage), metadata, "
        "or fields of the metadata such as author.name; what is not named comes empty; all by default",
        longest=MAX_FIELD_CHARACTERS,
        allowed="names with commas between, such as title,year",
        ranks=False,
        joined=True,
        json={"examples": ["title,year"]},
    )
    typos: bool = option(
        False,
        "whether a word that no document has stands for the most similar word of one, by pairs of letters, "
        "in keyword search",
    )
    coverage: bool | None = None

    def check(self, queries: Sequence[str], *, vectors: bool = False) -> None:
        """Refuse options that do not go together.

        Args:
            queries: their texts; "" without one.
            vectors: whether each query has a vector, which takes the place of its text's embedding.

        Raises:
            InvalidRequest: an empty query, a cursor with several, too many hits to be explained, too many
                queries to be grouped, two orders, a misspelt choice.
        """
        blank = next((i for i, query in enumerate(queries) if not query.strip()), None)
        if vectors and self.mode == "keyword":
            raise InvalidRequest("mode='keyword' with a vector; words have none: use hybrid or dense")
        if vectors and self.stages == 2:
            raise InvalidRequest("stages=2 with a vector, which has no tokens; leave one of them out")
        if blank is not None and not vectors:
            which = "the query" if len(queries) == 1 else f"query {blank}"
            raise InvalidRequest(f"{which} is empty; give at least one word")
        if broken := next((query for query in queries if _LONE_SURROGATE.search(query)), None):
            raise InvalidRequest(f"the query {broken[:80]!a} has bytes that are not UTF-8; give UTF-8")
        if self.cursor is not None and len(queries) != 1:
            raise InvalidRequest(
                f"cursor and {amount(len(queries), 'query')}; it goes on with one: ask that alone"
            )
        if not 0 <= self.diversity <= 1:
            raise InvalidRequest(f"diversity={self.diversity}; use a number from 0 to 1")
        for name, about in _CHOICES.items():
            value = getattr(self, name)
            if value not in about.choices:
                use = about.allowed or " or ".join(about.choices)
                raise InvalidRequest(f"{name}={value!r}; use {use}{suggestion(str(value), about.choices)}")
        arranges = self.group_by is not None or self.sort is not None or self.diversity or self.collapse
        if arranges and len(queries) > MAX_ARRANGED:
            raise InvalidRequest(
                f"group_by, collapse, diversity or sort with {amount(len(queries), 'query')}; use at most "
                f"{MAX_ARRANGED} in one call"
            )
        if self.sort is not None and self.diversity:
            raise InvalidRequest(f"sort={self.sort!r} and diversity={self.diversity}; give one of the two")
        if (self.explain or self.highlight) and len(queries) * self.limit > MAX_DETAILED:
            raise InvalidRequest(
                f"explain or highlight of {amount(self.limit, 'hit')} for {amount(len(queries), 'query')}; "
                f"use at most {MAX_DETAILED} in all"
            )

    def covers(self, documents: int) -> bool:
        """Return True if the covered share of the exact softmax over so many documents is to be computed."""
        return documents <= COVERAGE_DOCUMENTS if self.coverage is None else self.coverage

    def ranking(self, filter: object) -> tuple[object, ...]:
        """Return the options that, with the query, decide hits and their order; `filter` is parsed."""
        return (filter, *_RANKING(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOptions:
    """Options of a search that only servers have, which remember pages and tasks.

    Attributes:
        episode: name of the task that this search belongs to, whose outcome is reported to …/outcomes.
    """

    explore: float | None = option(
        None,
        "share of such pages on which two random positions may swap, to separate preference from position in "
        "feedback; the service's setting, 0 unless set, by default",
        low=0,
        high=MAX_EXPLORE,
        allowed=f"a share of the pages from 0 to {MAX_EXPLORE}",
    )
    episode: EpisodeName | None = None


_CHOICES = {name: about for name, (_, about) in options_of(SearchOptions).items() if about.choices}
_RANKING = attrgetter(*(name for name, (_, about) in options_of(SearchOptions).items() if about.ranks))
