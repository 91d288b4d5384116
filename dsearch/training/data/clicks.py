"""Convert pages and events to graded examples: clicks weighted by position, thumbs above clicks.

    grade(q, d) = Σ clicks of d for q, each with weight min(1 / θ_position, clip) · its action's grade
                  as a share of the best document's

Inverse propensity scoring makes that sum, over many pages, proportional to the probability that a user who
examines d clicks it, at any position (Joachims, Swaminathan and Schnabel, WSDM 2017, eq. 6). The clip bounds
its variance, and the effect of a click on a low position.

**Each key's weight is limited.** Within a query a key has at most twice as many clicks as the median
key there; over all queries at most a share of all clicks (actions.py). With `MANY_KEYS` keys or more
a document counts for a query only if two of them agree, and then none counts more than the others together: a
single key cannot make a document relevant alone. A key whose clicks hardly agree with any other is left out.

**Agents** choose what to read by titles, at any position: a document that a key read counts without position
correction, times the share of the keys that saw it and read it with profit. A key that saw it and left it, or
read it in vain, is in the denominator, once.

**Thumbs outweigh clicks.** The newest thumb of a client counts. A quorum of keys makes a document relevant
above any click (more thumbs up than down), or takes it out of the query (more down than up). Below the
quorum, a thumb up counts as a click on the first position, and a thumb down revokes that key's own clicks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np

from dsearch.errors import InvalidRequest, amount
from dsearch.store import Event, Impression, Page
from dsearch.training.data.actions import ACTIONS, factors_of, outsiders
from dsearch.training.data.propensity import Propensities
from dsearch.types import query_name

MANY_KEYS = 20
_MOST_OF_ONE = 10  # clicks of a key that has a query for itself
_MOST_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class ClickOptions:
    """Options for converting clicks to grades.

    Attributes:
        clip: largest weight of a click, in clicks on the first position.
        key_share: largest share of all clicks for one key.
        quorum: number of keys that have to agree on a document of a query; None: 2 with `MANY_KEYS` or more,
            else 1.
        floor: smallest share of the best document's clicks; documents below it are treated as noise.
    """

    clip: float = 10.0
    key_share: float = 0.1
    quorum: int | None = None
    floor: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.clip < float("inf"):
            raise InvalidRequest(f"clip={self.clip}; use a number of at least 1")
        for name in ("key_share", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}; use a number from 0 to 1")
        if self.quorum is not None and self.quorum < 1:
            raise InvalidRequest(f"quorum={self.quorum}; use an integer of at least 1")


@dataclass(frozen=True, slots=True)
class ClickGrades:
    """Grades derived from pages and events.

    Attributes:
        texts: query → its text as first written; queries that differ only in case or spaces are equal.
        grades: query → document → grade: up to 1 by clicks, 2 by thumbs.
        weights: query → amount of evidence, at most twice the median's.
        displayed: query → documents on its pages with a reaction.
        negatives: documents that a quorum of agents saw for some query and left, and nobody read with profit.
        clicks: number of clicks counted.
        keys: number of keys.
        quorum: quorum that was applied.
        left_out: number of clicks, thumbs or documents left out, by reason.
    """

    texts: dict[str, str]
    grades: dict[str, dict[str, float]]
    weights: dict[str, float]
    displayed: dict[str, set[str]]
    negatives: set[str]
    clicks: int
    keys: int
    quorum: int
    left_out: dict[str, int]


@dataclass(slots=True)
class Reaction:
    """Actions of one key on one document of one query."""

    mass: float = 0.0
    clicks: int = 0
    chosen: int = 0  # pages on which an agent read it with profit
    passed: int = 0  # pages on which an agent left it, or read it in vain
    thumbs: dict[str, tuple[float, bool]] = field(default_factory=dict)  # client → (time, up)

    @property
    def up(self) -> int:
        """1: this key calls it relevant, −1: not relevant, 0: says nothing or both alike."""
        return int(np.sign(sum(1 if up else -1 for _, up in self.thumbs.values())))

    @property
    def profit(self) -> float | None:
        """Share of this agent's pages on which it read the document with profit; None without any."""
        pages = self.chosen + self.passed
        return self.chosen / pages if pages else None


_Of = dict[str, dict[str, dict[str, Reaction]]]  # query → document → key


def graded_pages(
    pages: Iterable[Page], propensities: Propensities, options: ClickOptions | None = None
) -> ClickGrades:
    """Grades of all queries that somebody reacted to."""
    options = options or ClickOptions()
    left_out: Counter[str] = Counter()
    texts: dict[str, str] = {}
    displayed: dict[str, set[str]] = defaultdict(set)
    pages = list(pages)
    for page in pages:
        name = query_name(page.impression.query)
        displayed[name].update(page.impression.ids)
        written = texts.setdefault(name, page.impression.query)
        texts[name] = min(written, page.impression.query)
    clicked = reactions_of(pages, propensities, options.clip, left_out)
    everyone = {key for of in clicked.values() for keys in of.values() for key in keys}
    quorum = options.quorum or (2 if len(everyone) >= MANY_KEYS else 1)
    if quorum > 1:
        _leave_out_outsiders(clicked, left_out)
    totals: Counter[str] = Counter()
    for documents in clicked.values():
        for key, (factor, clicks) in _within_query(documents).items():
            for of in documents.values():
                if key in of:
                    of[key].mass *= factor
            totals[key] += factor * clicks  # type: ignore[assignment]
    share = factors_of(totals, options.key_share)
    grades: dict[str, dict[str, float]] = {}
    evidence: dict[str, float] = {}
    for name, documents in clicked.items():
        document_grades, mass = _grades(documents, share, quorum, options.floor, left_out)
        if document_grades:
            grades[name], evidence[name] = document_grades, mass
    middle = float(np.median(list(evidence.values()))) if evidence else 1.0
    weights = {name: _MOST_WEIGHT * mass / (mass + middle) for name, mass in evidence.items()}
    clicks = sum(tally.clicks for of in clicked.values() for keys in of.values() for tally in keys.values())
    counted = {reason: count for reason, count in left_out.items() if count}
    return ClickGrades(
        texts={name: texts[name] for name in grades},
        grades=grades,
        weights=weights,
        displayed={name: displayed[name] for name in grades},
        negatives=set().union(*(_negatives(clicked[name], quorum) for name in grades)),
        clicks=clicks,
        keys=len(everyone),
        quorum=quorum,
        left_out=counted,
    )


def reactions_of(
    pages: Iterable[Page], propensities: Propensities, clip: float, left_out: Counter[str]
) -> _Of:
    """Acts of each key on each document, for each query by its name."""
    reactions: _Of = defaultdict(lambda: defaultdict(lambda: defaultdict(Reaction)))
    for page in pages:
        _add_page(reactions[query_name(page.impression.query)], page, propensities, clip, left_out)
    return reactions


def _negatives(documents: dict[str, dict[str, Reaction]], quorum: int) -> set[str]:
    """Documents of one query that a quorum of agents left, and none read with profit."""
    profits = {
        document: [profit for key in keys.values() if (profit := key.profit) is not None]
        for document, keys in documents.items()
    }
    return {document for document, of in profits.items() if len(of) >= quorum and not any(of)}


def _leave_out_outsiders(pages: _Of, left_out: Counter[str]) -> None:
    clicked = {
        name: {
            document: [key for key, tally in keys.items() if tally.clicks] for document, keys in of.items()
        }
        for name, of in pages.items()
    }
    apart = outsiders(clicked)
    left_out["keys that click what hardly anybody else does"] += len(apart)
    for documents in pages.values():
        for keys in documents.values():
            for key in apart & keys.keys():
                left_out["clicks of these keys"] += keys[key].clicks
                del keys[key]


def _add_page(
    documents: dict[str, dict[str, Reaction]],
    page: Page,
    propensities: Propensities,
    clip: float,
    left_out: Counter[str],
) -> None:
    """Add a page's events: of a key's acts on one document the one with the highest grade."""
    best: dict[tuple[str, str], float] = {}
    profit: dict[str, set[str]] = {}  # agent → documents that it read with profit
    for event in page.events:
        action = ACTIONS.get(event.action)
        if action is None:
            left_out[f"events of unknown action {event.action!r}"] += 1
        elif action.explicit:
            thumbs = documents[event.object_id][event.key].thumbs
            newest = max(thumbs.get(event.client_id, (event.time_s, False)), (event.time_s, action.grade > 0))
            thumbs[event.client_id] = newest
        elif action.of_agent:
            read = profit.setdefault(event.key, set())
            if action.grade > 0:
                read.add(event.object_id)
                at = (event.object_id, event.key)
                best[at] = max(best.get(at, 0.0), action.grade)
        elif (weight := _weight(event, page.impression, propensities, clip)) is None:
            left_out["clicks without the page that they were on"] += 1
        else:
            at = (event.object_id, event.key)
            best[at] = max(best.get(at, 0.0), weight * action.grade)
    for (document, key), mass in best.items():
        documents[document][key].mass += mass
        documents[document][key].clicks += 1
    for key, read in profit.items():
        for document in {*page.impression.ids, *read}:
            if document in read:
                documents[document][key].chosen += 1
            else:
                documents[document][key].passed += 1


def _weight(event: Event, impression: Impression, propensities: Propensities, clip: float) -> float | None:
    """1 / θ at the position that the document was shown at, which is not for the sender to say."""
    position = impression.position_of(event.object_id)
    if position is None:
        return None
    return min(1 / float(propensities.at(np.array([position]))[0]), clip)


def _within_query(documents: dict[str, dict[str, Reaction]]) -> dict[str, tuple[float, int]]:
    """Each key's factor, so that it has at most twice the median key's clicks here; and its clicks."""
    clicks: Counter[str] = Counter()
    for keys in documents.values():
        for key, tally in keys.items():
            clicks[key] += tally.clicks
    clicked = [count for count in clicks.values() if count]
    most = 2 * median_low(clicked) if len(clicked) > 1 else _MOST_OF_ONE
    return {key: (min(1.0, most / count) if count else 1.0, count) for key, count in clicks.items()}


def _grades(
    documents: dict[str, dict[str, Reaction]],
    share: dict[str, float],
    quorum: int,
    floor: float,
    left_out: Counter[str],
) -> tuple[dict[str, float], float]:
    """Grades of one query's documents, and how much evidence they are."""
    clicked: dict[str, float] = {}
    said: dict[str, float] = {}
    for document, keys in documents.items():
        ups = sum(tally.up > 0 for tally in keys.values())
        downs = sum(tally.up < 0 for tally in keys.values())
        if ups > downs and ups >= quorum:
            said[document] = ACTIONS["thumbs_up"].grade
            continue
        if downs > ups and downs >= quorum:
            left_out["documents called not relevant"] += 1
            continue
        mass = {
            key: share.get(key, 1.0) * tally.mass + (tally.up > 0)
            for key, tally in keys.items()
            if tally.up >= 0 and (tally.mass or tally.up)
        }
        if len(mass) >= quorum:
            total = sum(mass[key] for key in sorted(mass))
            profits = [profit for key in keys.values() if (profit := key.profit) is not None]
            agreed = min(total, 2 * (total - max(mass.values()))) if quorum > 1 else total
            clicked[document] = agreed * (sum(profits) / len(profits) if profits else 1.0)
        elif mass:
            left_out[f"documents of a query on which fewer than {amount(quorum, 'key')} agree"] += 1
    most = max(clicked.values(), default=0.0)
    # A document of mass 0 was clicked, but agents who read it found it of no use.
    noise = {document for document, mass in clicked.items() if mass == 0 or mass < floor * most}
    left_out["documents of a query with too few of its clicks"] += len(noise)
    grades = {document: mass / most for document, mass in clicked.items() if document not in noise}
    return grades | said, sum(clicked.values()) + len(said) * max(most, 1.0)
