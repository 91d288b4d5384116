"""Ledger of tries: the α that is left for another candidate on held-out queries that refused others before.

Alpha-wealth (Foster and Stine, JRSS B 70:429, 2008): fresh queries have a wealth of 1 in units of the gate's
α. The candidate after c refused ones may spend

    W(c) − W(c + 1)        W(c) = (1 + 1.5c)^−½

of it, so however many candidates the same queries judge, together they spend no more than α; the fifth may
spend .035 α, the twentieth .0045 α. A candidate that passes earns the wealth back: its queries count no
earlier refusal. The first candidate on fresh queries is decided as the gate says, without the ledger.

The sum bounds the chance that any useless candidate passes as long as a refusal tells no more than that
(Blum and Hardt 2015, "The Ladder"; Dwork et al. 2015, "Generalization in Adaptive Data Analysis and Holdout
Reuse"). So after `SHOWN` refusals the report on a refused candidate withholds its figures. Guide `decisions`
has the comparison with e-values and Thresholdout.

New judgements refill the wealth: c is the mean over the judged queries of the refusals that each has seen,
and a new query has seen none.

Way of a verdict: `Account.of` before the gate judges → `Account.gate` → `Account.entered` into the record →
`note` where the version is registered, since the gate may judge in another process.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from dsearch.errors import InvalidRequest, amount
from dsearch.results import TriesLeft
from dsearch.store import Store, StoredVerdict
from dsearch.store.reader import Reader

SHOWN = 3  # refusals up to which reports have figures: they hardly help to choose the next candidate
_DECAY = 1.5
_MOST = 4096  # queries of an entry, 32 KiB
_ENTRY, _QUERIES = "ledger", "queries"  # member of a record, and its member that is stored apart


@dataclass(frozen=True, slots=True)
class Tries:
    """Candidates that the same held-out queries have refused before.

    Attributes:
        count: mean number of refusals over the queries, since the last candidate that passed; 0 for fresh
            ones.

    Raises:
        InvalidRequest: a negative or infinite count.
    """

    count: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.count < float("inf"):
            raise InvalidRequest(f"count={self.count} tries; use a number of at least 0")

    @property
    def left(self) -> float:
        """Share of α that all further candidates together may spend, from 1 down to 0."""
        return (1 + _DECAY * self.count) ** -0.5

    def alpha(self, alpha: float) -> float:
        """Largest p-value that counts as a gain of the next candidate, where fresh queries have `alpha`."""
        return alpha * (self.left - Tries(self.count + 1).left)


def digests_of(texts: Iterable[str]) -> Int64[np.ndarray, " queries"]:
    """Digests of query texts, each once, ascending: the first eight bytes of their SHA-256.

    Of more than 4,096 the lowest ones (Broder 1997): two sets share about as large a part of them as of all.
    """
    heads = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in texts]
    return np.unique(np.frombuffer(b"".join(heads), "<i8").astype(np.int64))[:_MOST]


def tries_on(queries: Int64[np.ndarray, " queries"], verdicts: Sequence[StoredVerdict]) -> Tries:
    """Tries on these queries, by all earlier verdicts in their order.

    Args:
        queries: digests of the held-out queries, ascending, each once.
        verdicts: earlier verdicts of the collection, oldest first.
    """
    if not len(queries):
        return Tries()
    refusals = np.zeros(len(queries))
    for verdict in verdicts:
        judged = np.isin(queries, verdict.queries)
        refusals[judged] = 0 if verdict.passed else refusals[judged] + 1
    return Tries(float(refusals.mean()))


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Account of the judged queries of one decision, drawn up before the gate judges.

    Attributes:
        queries: digests of the queries that the held-out ones are among.
        tries: earlier refusals on them.
    """

    queries: Int64[np.ndarray, " queries"]
    tries: Tries

    @classmethod
    def of(cls, store: Reader, texts: Iterable[str]) -> Account:
        """Account of a collection for these query texts."""
        queries = digests_of(texts)
        return cls(queries, tries_on(queries, store.verdicts()))

    def alpha(self, alpha: float) -> float:
        """Largest p-value that counts as a gain of the candidate; `alpha` itself on fresh queries."""
        return self.tries.alpha(alpha) if self.tries.count else alpha

    def entered(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A judged candidate's record with the account; see `SHOWN` for figures that it withholds."""
        gate: dict[str, Any] = dict(record["gate"])
        if self.tries.count:
            before = "about " if self.tries.count % 1 else ""
            refused = f"{before}{amount(max(1, round(self.tries.count)), 'candidate')}"
            needed = f"so p ≤ {gate['alpha']:.2g} is needed"
            gate["reason"] += f"; the same queries refused {refused} before, {needed}"
        if self.tries.count >= SHOWN and gate["verdict"] != "passed":
            gate = _withheld(gate)
        entry = {
            "refusals": self.tries.count,
            "left": self.tries.left,
            _QUERIES: base64.b64encode(self.queries.astype("<i8").tobytes()).decode(),
        }
        return {**record, "gate": gate, _ENTRY: entry}


def _withheld(gate: Mapping[str, Any]) -> dict[str, Any]:
    """Report on a refused candidate without what it shows on the held-out queries."""
    reason = (
        "it shows no gain that counts; figures are withheld, since choosing by them would wear these queries "
        "out: add judgements of other queries"
    )
    unknown = dict.fromkeys(("p_value", "decision"))
    kept = {name: value for name, value in gate.items() if name not in ("wins", "losses")}
    slices = [
        {name: part[name] if name in ("name", "queries", "before") else None for name in part}
        for part in gate["slices"]
    ]
    return {**kept, **unknown, "slices": slices, "reason": reason, "withheld": True}


def without_queries(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as it is kept with the version: the digests of the queries go to the table of verdicts."""
    if _ENTRY not in record:
        return dict(record)
    entry = {name: value for name, value in record[_ENTRY].items() if name != _QUERIES}
    return {**record, _ENTRY: entry}


def note(store: Store, record: Mapping[str, Any], version: str | None, *, passed: bool = False) -> None:
    """Write the verdict of a record into the ledger; nothing where the gate compared nothing.

    Args:
        store: of the collection.
        record: as `Account.entered` gives it; nothing of a candidate that changed no ranking.
        version: version that the candidate became.
        passed: True where another candidate of the same decision passed.
    """
    entry, gate = record.get(_ENTRY), record.get("gate")
    if not entry or not gate or not _compared(gate):
        return
    queries = np.frombuffer(base64.b64decode(entry[_QUERIES]), "<i8").astype(np.int64)
    passed = passed or gate["verdict"] == "passed"
    kind = str(record.get("scope", "head"))
    store.add_verdict(StoredVerdict(kind, queries, gate["alpha"], passed, version, int(time.time())))


def _compared(gate: Mapping[str, Any]) -> bool:
    """True if held-out queries said anything of the candidate: one that changes no ranking is no try."""
    whole = gate["slices"][0]
    change = whole.get("evidence") or whole.get("difference")
    unchanged = change is not None and change["low"] == change["high"] == 0
    return bool(whole["queries"]) and not unchanged


def tries_left(store: Reader) -> TriesLeft | None:
    """What is left on the queries of the latest verdict; None before the first."""
    verdicts = store.verdicts()
    if not verdicts:
        return None
    queries = verdicts[-1].queries
    tries = tries_on(queries, verdicts)
    return TriesLeft(len(queries), tries.count, tries.left)
