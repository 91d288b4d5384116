"""Judgements that people made on what they saw, and the queries whose judgement would tell most.

Stated opinions of a person (thumbs, "this is the answer") are judgements of that person: the latest on a
document counts. A version is best compared with the live version on the queries on which they differ most:

    difference = 1 − Σ_d min(g₁(d), g₂(d)) / Σ_d g₁(d),   g(d) = 1 / log₂(1 + rank of d), the first ten

(uncertainty between two rankers as in active learning: Settles 2009, section 3.2, query by committee).
"""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsearch.corpus.made_queries import known_item_queries
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.store import Event, Impression
from dsearch.training.data.clicks import ACTIONS
from dsearch.training.gate.decision import missing_queries
from dsearch.types import Mode, OwnJudgements, QueriesToJudge, QueryToJudge, query_name

MOST_ASKED = 200  # of the queries that people asked, the latest
MADE = 40  # queries from documents, where people asked too few
GRADES = {0: "thumbs_down", 1: "partly", 2: "thumbs_up", 3: "answer"}
"""Actions that state the grades of opinions."""
_DEPTH = 10
_AT_A_TIME = 32


@dataclass(frozen=True, slots=True)
class OpinionsWritten:
    """Opinions that were written down.

    Attributes:
        new: number on documents that this person had not judged for the query.
        changed: number that replace an earlier one of this person.
        unchanged: number that this person had stated before.
    """

    new: int
    changed: int
    unchanged: int


def write_opinions(
    collection: Collection,
    queries: Mapping[str, str],
    judgements: Mapping[str, Mapping[str, float]],
    client_id: str,
) -> OpinionsWritten:
    """Write judgements as opinions of one person, all or none; durable on return.

    Args:
        collection: collection of the documents.
        queries: query id → text.
        judgements: query id → document id → grade; rounded to one of `GRADES`.
        client_id: name of the person.

    Raises:
        FeedbackFull, InsufficientStorage, Unavailable, CorruptData.
    """
    key, now = f"client:{client_id}", time.time()
    before = own_judgements(collection, key).judgements
    pages: dict[str, Impression] = {}
    events: list[Event] = []
    changed = unchanged = 0
    for query, of in judgements.items():
        text = queries[query]
        query_id = "text-" + hashlib.sha256(text.encode()).hexdigest()[:32]
        earlier = before.get(query_name(text), {})
        for document, grade in of.items():
            action = GRADES[nearest_grade(grade)]
            if earlier.get(document) == ACTIONS[action].grade:
                unchanged += 1
                continue
            changed += document in earlier
            pages.setdefault(query_id, Impression(query_id, text, now, key=key))
            events.append(Event(uuid.uuid4().hex, query_id, key, client_id, action, document, None, now, now))
    if events:
        collection.feedback.record(list(pages.values()), events)
    return OpinionsWritten(len(events) - changed, changed, unchanged)


def nearest_grade(grade: float) -> int:
    """Return the grade of an opinion: 0 for none or below, otherwise 1 to 3."""
    return 0 if grade <= 0 else min(max(round(grade), 1), max(GRADES))


def own_judgements(collection: Collection, key: str | None = None) -> OwnJudgements:
    """Collect what one person has said about documents; of everybody when `key` is None.

    Args:
        collection: collection of the feedback.
        key: id of the API key, or `client:ID`, that the opinions came with.

    Raises:
        CorruptData: the feedback is damaged.
    """
    texts: dict[str, str] = {}
    latest: dict[tuple[str, str], tuple[float, float]] = {}
    for page in collection.feedback.pages():
        name = query_name(page.impression.query)
        for event in page.events:
            action = ACTIONS.get(event.action)
            if action is None or not action.explicit or (key is not None and event.key != key):
                continue
            texts.setdefault(name, page.impression.query)
            at = (name, event.object_id)
            if at not in latest or latest[at][0] <= event.received_s:
                latest[at] = event.received_s, action.grade
    judgements: dict[str, dict[str, float]] = {}
    for (name, document), (_, grade) in latest.items():
        judgements.setdefault(name, {})[document] = grade
    answered = sum(any(grade > 0 for grade in of.values()) for of in judgements.values())
    return OwnJudgements(texts, judgements, answered, missing_queries(answered))


def queries_to_judge(
    collection: Collection,
    *,
    version: str | None = None,
    judged: Sequence[str] = (),
    limit: int = 10,
    seed: int = 0,
) -> QueriesToJudge:
    """Return the queries on which the live version and another one differ most.

    Args:
        collection: collection that is searched.
        version: the other version; the latest that is not live when None. Without any, hybrid search is
            compared with search by meaning alone.
        judged: texts of queries that are left out.
        limit: number of queries.
        seed: random seed of the queries that are made from documents.

    Raises:
        InvalidRequest: the other version is the live one.
        ModelNotFound: no such version.
    """
    live = collection.live_model
    if version == live:
        raise InvalidRequest(f"version {version} answers already; name another one to compare with")
    if version is None:
        others = [each.version for each in collection.store.models() if each.version != live]
        version = others[-1] if others else None
    second: tuple[str, Mode] = (live, "dense") if version is None else (version, "hybrid")
    texts = _texts(collection, {query_name(text) for text in judged}, seed)
    ranked: list[QueryToJudge] = []
    names = list(texts)
    for start in range(0, len(names), _AT_A_TIME):
        part = names[start : start + _AT_A_TIME]
        first = _tops(collection, part, live, "hybrid")
        other = _tops(collection, part, *second)
        for text, before, after in zip(part, first, other, strict=True):
            ranked.append(QueryToJudge(text, difference_of(before, after), texts[text]))
    ranked = [each for each in ranked if each.difference > 0]
    ranked.sort(key=lambda each: -each.difference)
    against = f"{live} by meaning alone" if version is None else version
    return QueriesToJudge(live, against, ranked[:limit])


def difference_of(before: Sequence[str], after: Sequence[str]) -> float:
    """Return 0 for equal rankings to 1 for those without a common document."""
    gains = [1 / math.log2(2 + rank) for rank in range(_DEPTH)]
    total = sum(gains[: max(len(before), len(after))])
    if not total:
        return 0.0
    at = {id: gains[rank] for rank, id in enumerate(before[:_DEPTH])}
    shared = sum(min(at[id], gains[rank]) for rank, id in enumerate(after[:_DEPTH]) if id in at)
    return 1 - shared / total


def _tops(collection: Collection, texts: Sequence[str], model: str, mode: Mode) -> list[list[str]]:
    results = collection.search_batch(
        texts, limit=_DEPTH, model=model, mode=mode, operators=False, coverage=False
    )
    return [[hit.id for hit in result.hits] for result in results]


def _texts(collection: Collection, judged: set[str], seed: int) -> dict[str, bool]:
    """Queries that were asked, by people (True) or made from documents (False); one text of each name."""
    last: dict[str, tuple[float, str]] = {}  # name → latest time, and the text of then
    for page in collection.feedback.pages():  # in the order of their ids, which are random
        at = page.impression.shown_s, page.impression.query
        if (name := query_name(at[1])) not in judged:
            last[name] = max(last.get(name, at), at)
    latest = sorted(last.values())[-MOST_ASKED:]
    texts = dict.fromkeys([text for _, text in latest], True)
    names = {*judged, *last}
    visible = collection.snapshot.visible()
    drawn = np.random.default_rng(seed).permutation(len(visible))[:MADE]
    documents = collection.store.documents(collection.snapshot.rows(np.sort(visible[drawn])))
    for text, _ in known_item_queries(documents, seed):
        if (name := query_name(text)) not in names:
            texts[text] = False
            names.add(name)
    return texts
