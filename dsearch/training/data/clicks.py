"""Convert pages and events to graded examples: clicks weighted by position, thumbs above clicks.

    grade(q, d) = Σ clicks of d for q, each with weight min(1 / θ_position, clip) · its action's grade
                  as a share of the best document's

Inverse propensity scoring makes that sum, over many pages, proportional to the probability that a user who
examines d clicks it, at any position (Joachims, Swaminathan and Schnabel, WSDM 2017, eq. 6). The clip bounds
its variance, and the effect of a click on a low position.

**Each key's weight is limited.** Within a query a key has at most twice as many clicks as the median
key there; over all queries at most a share of all clicks. With `MANY_KEYS` keys or more
a document counts for a query only if two of them agree, and then none counts more than the others together: a
single key cannot make a document relevant alone. A key whose clicks hardly agree with any other is left out.

**Agents** choose what to read by titles, at any position: a document that a key read counts without position
correction, times the share of the keys that saw it and read it with profit. A key that saw it and left it, or
read it in vain, is in the denominator, once.

**Thumbs outweigh clicks.** The newest thumb of a client counts. A quorum of keys makes a document relevant
above any click (more thumbs up than down), or takes it out of the query (more down than up). Below the
quorum, a thumb up counts as a click on the first position, and a thumb down revokes that key's own clicks.

A key is an API key, or a client if there are no API keys; events without either form one key. The caps do not
stop anyone who can create keys at will: keys are trusted.

`propensities_from_pages` estimates θ from pages with a randomly swapped pair, by the position-based model
(Richardson, Dominowska and Ragno, WWW 2007): a click at position k requires that k is examined, with
probability θ_k, and that the document attracts, independently of its position:

    E[clicks at k] = θ_k · attraction of the document at k

On a page with a drawn pair (a, b) a coin decided which of two documents is at a, so both positions have the
same attraction on average, and the share θ_a / (θ_a + θ_b) of the clicks on such a pair falls on a.
That is the model of paired comparisons of Bradley and Terry (1952), with positions for players and clicks for
games won; all pairs that were drawn are used at once (Agarwal et al., WSDM 2019, do the same with the swaps
that differ between rankers). Only clicks are counted, never pages without any: those are not stored.

A power law θ_k = k^−η (Joachims, Swaminathan and Schnabel, WSDM 2017, section 6) is fitted with it, as the
centre of a normal prior on log θ_k: with few clicks the estimate is the law, with many it is the data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, median_low
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int64

from dsearch.errors import InvalidRequest, amount
from dsearch.store import Event, Impression, Page
from dsearch.types import query_name


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes:
        grade: relevance grade of the document; 0: not relevant.
        explicit: True for a stated opinion, False for behaviour.
        meaning: description in words.
        of_agent: True where the rest of the page was looked at and left: no position correction, negatives.
    """

    grade: float
    explicit: bool
    meaning: str
    of_agent: bool = False


ACTIONS: MappingProxyType[str, Action] = MappingProxyType(
    {
        "click": Action(1.0, False, "opened from the page of hits"),
        "watch": Action(1.0, False, "played or read for a while"),
        "add_to_cart": Action(2.0, False, "put aside to be bought or read"),
        "purchase": Action(3.0, False, "bought, cited or downloaded"),
        "partly": Action(1.0, True, "called relevant in part"),
        "thumbs_up": Action(2.0, True, "called relevant"),
        "answer": Action(3.0, True, "called the answer"),
        "thumbs_down": Action(0.0, True, "called not relevant"),
        "used": Action(2.0, False, "useful to an agent in a task that succeeded", of_agent=True),
        "read": Action(1.0, False, "read by an agent; nothing speaks against it", of_agent=True),
        "dismissed": Action(0.0, False, "read by an agent in vain", of_agent=True),
    }
)


_ENOUGH_CLICKS = 10
_APART = 0.5  # of the median key's agreement


def factors_of(amounts: Mapping[str, float], share: float) -> dict[str, float]:
    """Factor of each key's amount, so that none has more than a share of the sum.

    The share is at least 2 / keys: one of two may give everything, one of ten a fifth. Keys of amount 0, such
    as those that only gave thumbs, do not count. The largest amounts are cut to one common cap c, the largest
    that satisfies c ≤ share · Σ min(amount, c).

    Args:
        amounts: key → amount, ≥ 0.
        share: largest share of one key.
    """
    ordered = sorted((amount for amount in amounts.values() if amount > 0), reverse=True)
    if not ordered:
        return dict.fromkeys(amounts, 1.0)
    share = min(1.0, max(share, 2 / len(ordered)))
    cap, rest = ordered[0], sum(ordered)
    for cut, weight in enumerate(ordered):
        # With the `cut` largest at the cap: c = share · (cut · c + the others' sum).
        open_share = 1 - share * cut
        cap = share * rest / open_share if open_share > 1e-12 else weight
        if weight <= cap:
            break
        rest -= weight
    return {key: min(1.0, cap / amount) if amount else 1.0 for key, amount in amounts.items()}


def outsiders(clicked: Mapping[str, Mapping[str, Collection[str]]]) -> set[str]:
    """Keys that agree with the others less than half as much as most do.

    Agreement is the share of the others of a query who clicked the same document, on average over what one
    clicked. Users who look for the same things differ little in it, since it averages their luck; somebody
    who clicks unpopular documents is far below, and has to spend clicks on popular ones to hide it.

    Args:
        clicked: query → document → keys.

    Returns:
        Those of at least ten clicks on queries that others clicked on, too.
    """
    agreement: dict[str, list[float]] = {}
    for documents in clicked.values():
        everybody = {key for keys in documents.values() for key in keys}
        if len(everybody) < 2:
            continue
        for keys in documents.values():
            share = (len(keys) - 1) / (len(everybody) - 1)
            for key in keys:
                agreement.setdefault(key, []).append(share)
    means = {key: sum(of) / len(of) for key, of in agreement.items() if len(of) >= _ENOUGH_CLICKS}
    least = _APART * median(means.values()) if means else 0.0
    return {key for key, mean in means.items() if mean < least}


POSITIONS = 10
MIN_CLICKS = 50
ASSUMED_STEEPNESS = 1.0
_LAW_SPREAD = 0.5  # of log θ_k about the law
_STEEPNESS_SPREAD = 1.0  # of η about the assumed one
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Propensities:
    """Examination probability of each position, relative to the first position's.

    Attributes:
        values: probabilities of positions 1, 2, …; the first is 1.
        steepness: η of the power law that they scatter about; it extrapolates to lower positions.
        clicks: number of clicks on randomly swapped pairs, the data of the estimate.
        source: "swaps"; "assumed" if there are too few of these clicks; "none" without correction.
    """

    values: Float[np.ndarray, " positions"]
    steepness: float
    clicks: int
    source: Literal["swaps", "assumed", "none"]

    def at(self, positions: Int64[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        """θ at positions counted from 1."""
        propensities = self.values[np.clip(positions, 1, len(self.values)) - 1]
        beyond = np.maximum(positions / len(self.values), 1.0) ** -self.steepness
        return propensities * beyond

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "values": [round(float(value), 4) for value in self.values],
            "steepness": round(self.steepness, 4),
            "clicks": self.clicks,
            "source": self.source,
        }


def even_propensities() -> Propensities:
    """Equal propensities: the assumption of naive learning from clicks."""
    return Propensities(np.ones(POSITIONS), 0.0, 0, "none")


def assumed_propensities(steepness: float = ASSUMED_STEEPNESS) -> Propensities:
    """The power law, where nothing was left to chance."""
    return Propensities(np.arange(1, POSITIONS + 1) ** -steepness, steepness, 0, "assumed")


def propensities_from_pages(pages: Iterable[Page], *, key_share: float = 0.1) -> Propensities:
    """Estimate them from the pages with a drawn pair.

    One click a page and document is counted; a key's clicks count for no more than `key_share` of all, see
    `factors_of`. With fewer than `MIN_CLICKS` clicks the power law with η = 1 is assumed.
    """
    clicks: list[tuple[str, int, int]] = []
    by_key: dict[str, float] = {}
    for page in pages:
        pair = page.impression.pair
        if pair is None or pair[1] > POSITIONS:
            continue
        for key, position in {
            (event.key, event.position) for event in page.events if _implicit(event.action)
        }:
            if position in pair:
                other = pair[0] if position == pair[1] else pair[1]
                clicks.append((key, position, other))
                by_key[key] = by_key.get(key, 0.0) + 1.0
    factors = factors_of(by_key, key_share)
    wins = np.zeros((POSITIONS, POSITIONS))
    for key, position, other in clicks:
        wins[position - 1, other - 1] += factors[key]
    return propensities_from_wins(wins, len(clicks))


def propensities_from_wins(wins: Float[np.ndarray, "positions positions"], clicks: int) -> Propensities:
    """The most probable θ for given clicks; exact for the model above, by Newton's method.

    Args:
        wins: clicks at a on pages whose drawn pair was {a, b}, at [a, b].
        clicks: number of clicks, before weighting.
    """
    if clicks < MIN_CLICKS:
        return assumed_propensities()
    count = len(wins)
    log_ranks = np.log(np.arange(1, count + 1))
    # The unknowns: log θ_2 … log θ_n, and η. The log posterior is concave in them.
    at = np.append(-ASSUMED_STEEPNESS * log_ranks[1:], ASSUMED_STEEPNESS)
    games = wins + wins.T
    for _ in range(_STEPS):
        log_theta = np.append(0.0, at[:-1])
        share = 1 / (1 + np.exp(log_theta[None] - log_theta[:, None]))  # θ_a / (θ_a + θ_b)
        slope = (wins - games * share).sum(1)[1:]
        bend = games * share * (1 - share)
        curve = (np.diag(bend.sum(1)) - bend)[1:, 1:]
        apart = at[:-1] + at[-1] * log_ranks[1:]
        precision, centre = _LAW_SPREAD**-2, _STEEPNESS_SPREAD**-2
        gradient = np.append(
            slope - precision * apart,
            -precision * (apart * log_ranks[1:]).sum() - centre * (at[-1] - ASSUMED_STEEPNESS),
        )
        hessian = np.zeros((count, count))
        hessian[:-1, :-1] = curve + precision * np.eye(count - 1)
        hessian[-1, :-1] = hessian[:-1, -1] = precision * log_ranks[1:]
        hessian[-1, -1] = precision * (log_ranks[1:] ** 2).sum() + centre
        step = np.linalg.solve(hessian, gradient)
        at = at + step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    return Propensities(np.exp(np.append(0.0, at[:-1])), float(max(at[-1], 0.0)), clicks, "swaps")


def _implicit(action: str) -> bool:
    return action in ACTIONS and not ACTIONS[action].explicit and not ACTIONS[action].of_agent


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
