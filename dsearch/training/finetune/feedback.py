"""Learn from feedback: `examples_from_feedback`, and `finetune_from_feedback` behind a trusted gate.

Anyone who can click can poison the data, and poison affects held-out clicks as well as training clicks. So a
head that learned from clicks is evaluated on a trusted slice: judgements, or the clicks of keys that are
named as trusted (they are not trained on then). Without one the gate cannot decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection as Several
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.errors import Command, InvalidRequest, amount
from dsearch.store import Page
from dsearch.training.data.clicks import (
    ClickGrades,
    ClickOptions,
    Propensities,
    even_propensities,
    graded_pages,
    propensities_from_pages,
)
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.finetune.head import TrainingResult, finetune
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers
from dsearch.training.loop.loop import Observer
from dsearch.training.loop.run_folder import RunFolder
from dsearch.training.options import TrainingOptions, feedback_options
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import DEPTH, EVIDENCE_DEPTH, Relevant, without
from dsearch.types import query_name

NO_TRUST = (
    "trained from clicks, which anybody can poison, and no trusted slice to judge by; give judgements, or "
    "name the keys whose clicks are trusted"
)


_CONDENSED_FROM = 100  # of a ranking, less what was never shown


@dataclass(frozen=True, slots=True)
class FromFeedback:
    """Examples from feedback, and their sources.

    Attributes:
        examples: graded and weighted examples.
        propensities: propensities that clicks were weighted by.
        graded: grades derived from the pages.
        options: options of the conversion.
        rows: document → row in the store, of all documents shown.
        pages: pages that they derive from.
    """

    examples: Examples
    propensities: Propensities
    graded: ClickGrades
    options: ClickOptions
    rows: dict[str, int]
    pages: Sequence[Page] = ()

    def shown_positions(self) -> list[Int64[np.ndarray, " _"]]:
        """For each example, the positions of what pages with a reaction had."""
        row_list = list(self.rows)
        positions = self.examples.snapshot.positions_of(
            np.array([self.rows[id] for id in row_list], np.int64)
        )
        at = dict(zip(row_list, positions.tolist(), strict=True))
        displayed = [self.graded.displayed[query_name(text)] for text in self.examples.texts]
        return [np.array(sorted(at[id] for id in ids if id in at), np.int64) for ids in displayed]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the model's file."""
        return {
            "clicks": self.graded.clicks,
            "keys": self.graded.keys,
            "quorum": self.graded.quorum,
            "left_out": self.graded.left_out,
            "propensities": self.propensities.to_dict(),
            **asdict(self.options),
        }

    def to_text(self) -> str:
        """A few lines for a terminal."""
        theta = self.propensities
        estimated = f"estimated from {amount(theta.clicks, 'click')} on positions that a coin had decided"
        assumed = (
            f"assumed: too few ({amount(theta.clicks, 'click')} on such positions); search with explore "
            "for more"
        )
        how = {"swaps": estimated, "assumed": assumed, "none": "not corrected for"}[theta.source]
        lines = [
            f"feedback: {amount(self.graded.clicks, 'click')} of {amount(self.graded.keys, 'key')}",
            f"{amount(len(self.examples), 'usable query')}; keys that have to agree: {self.graded.quorum}",
            f"position bias: {how}; θ = " + " ".join(f"{value:.2f}" for value in theta.values),
        ]
        return "\n".join([*lines, *(f"left out: {why}: {n}" for why, n in self.graded.left_out.items())])


def examples_from_feedback(
    collection: Collection,
    *,
    options: ClickOptions | None = None,
    propensities: Propensities | None = None,
    correct: bool = True,
    only: Several[str] | None = None,
    without: Several[str] = (),
) -> FromFeedback:
    """Queries that people reacted to, their documents graded by clicks and thumbs.

    Args:
        collection: collection of the feedback.
        options: options for converting clicks to grades.
        propensities: propensities of positions; None estimates them from all feedback.
        correct: False: every click weighs the same (naive).
        only: keys whose events count; all when None.
        without: keys whose events do not.

    Raises:
        InvalidRequest: there is no feedback to learn from.
        CorruptData: it is damaged.
    """
    options = options or ClickOptions()
    pages = list(_of_keys(collection.feedback.pages(), only, without))
    if not correct:
        propensities = even_propensities()
    elif propensities is None:
        propensities = propensities_from_pages(pages, key_share=options.key_share)
    graded = graded_pages(pages, propensities, options)
    if not graded.grades:
        why = "; ".join(f"{reason}: {count}" for reason, count in graded.left_out.items()) or "there is none"
        if only is not None and why == "there is none":
            raise InvalidRequest(
                f"no feedback of {collection.name!r} by {', '.join(sorted(only))}; name keys that sent some, "
                "or client:ID of who sent it without one"
            )
        if without and why == "there is none":
            raise InvalidRequest(
                f"no feedback of {collection.name!r} to learn from beside that of "
                f"{', '.join(sorted(without))}, which is trusted to judge it; to learn from one's own "
                "judgements, write them to a file and give that as judgements",
                hint=Command("judgements export", ("FILE", "-c", collection.name)),
            )
        raise InvalidRequest(
            f"no feedback of {collection.name!r} to learn from: {why}. Send events to "
            f"POST /v1/collections/{collection.name}/feedback"
        )
    examples = examples_from_judgements(collection, graded.texts, graded.grades)
    weights = np.array([graded.weights[query_name(text)] for text in examples.texts], np.float32)
    weights /= weights.mean()
    rows = collection.store.rows_of(sorted(set().union(*graded.displayed.values())))
    left = np.array([rows[id] for id in sorted(graded.negatives) if id in rows], np.int64)
    negatives = examples.snapshot.positions_of(left)
    negatives = np.unique(negatives[negatives >= 0])
    content = examples.digest.encode() + weights.tobytes() + negatives.tobytes()
    digest = hashlib.sha256(content).hexdigest()
    examples = replace(
        examples, weights=weights, digest=digest, source="clicks", negatives=negatives if len(left) else None
    )
    return FromFeedback(examples, propensities, graded, options, dict(rows), pages)


def finetune_from_feedback(
    source: FromFeedback,
    trusted: Examples | FromFeedback | None,
    options: TrainingOptions | None = None,
    *,
    gate: Gate | None = None,
    start: Head | None = None,
    live: Head | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
    run: RunFolder | None = None,
) -> TrainingResult:
    """Train a head on feedback, all epochs, and judge it by the trusted slice; nothing is published.

    The trusted slice is a sample of what is asked: queries that others clicked on as well, and queries that
    nobody else asked. What answers now has learned from none of it either, so the two are compared directly.

    Args:
        source: what to learn from; without the trusted keys' events.
        trusted: judgements, or the feedback of trusted keys alone.
        options: how (`feedback_options` when None); nothing of the feedback is held out.
        gate: requirements of the gate.
        start: initial head, as for `finetune`.
        live: head of the live model, to be beaten; None for `start`.
        device: device of the training.
        observer: receives headroom, epochs and progress; stops it.
        run: folder of checkpoints and metrics; an interrupted run resumes from it.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        Cancelled: the observer stopped it.
    """
    options = replace(options or feedback_options(), folds=0, tune=False)
    start = Head(source.examples.states.shape[1]).eval() if start is None else start
    trained = finetune(
        source.examples,
        options,
        gate=gate,
        start=start,
        device=device,
        observer=observer,
        run=run,
    )
    report = judged_by_trusted(source.examples, trusted, live or start, trained.head, gate, options)
    report = replace(report, canary_overlap=trained.gate.canary_overlap)
    judging = trusted.examples if isinstance(trusted, FromFeedback) else trusted
    queries = 0 if judging is None else len(judging)
    return trained.judged(report, feedback=source.to_dict(), trusted_queries=queries)


def judged_by_trusted(
    examples: Examples,
    trusted: Examples | FromFeedback | None,
    before: Head,
    after: Head,
    gate: Gate | None = None,
    options: TrainingOptions | None = None,
) -> GateReport:
    """The gate's verdict by the trusted slice alone; "cannot tell" without one.

    Its slices are of queries: "seen" those that others clicked on as well, "unseen" those that nobody else
    asked. They come as they are asked; a slice of too few is not judged by itself.

    Clicks are on what was shown, by what answered then; whatever else a new head finds would count as not
    relevant. So with clicks the gain is that of rankings without what was never shown (condensed lists:
    Sakai, SIGIR 2007), and the whole rankings, where somebody might have lifted just such documents, may
    not fall by more than the margin.
    """
    if trusted is None:
        return replace(judge(None, None, gate), reason=NO_TRUST)
    options, gate = options or TrainingOptions(), gate or Gate()
    trusted_slice = TrustedSlice.of(examples, trusted, options)
    now, then = trusted_slice.answers([before, after])
    report = judge(now, then, gate, need_slices=False, seed=options.seed)
    return trusted_slice.bounded(report, before, after)


@dataclass(frozen=True, slots=True)
class TrustedSlice:
    """Queries of whoever is trusted, ranked as they are judged.

    Attributes:
        examples: the queries.
        seen: True for those that others reacted to as well.
        displayed: for each query, positions of what was shown; None where everything was judged.
        ranking: ranks them.
    """

    examples: Examples
    seen: Bool[np.ndarray, " queries"]
    displayed: list[Int64[np.ndarray, " _"]] | None
    ranking: Ranking

    @classmethod
    def of(
        cls, learned: Examples, trusted: Examples | FromFeedback, options: TrainingOptions
    ) -> TrustedSlice:
        """The trusted queries, beside those that are learned from."""
        judging = trusted.examples if isinstance(trusted, FromFeedback) else trusted
        names = {query_name(text) for text in learned.texts}
        seen = np.array([query_name(text) in names for text in judging.texts])
        displayed = trusted.shown_positions() if isinstance(trusted, FromFeedback) else None
        return cls(judging, seen, displayed, Ranking(judging, keywords=options.keywords))

    def answers(self, heads: Sequence[Head]) -> list[Answers]:
        """Answers of heads, without what was never shown where only that was judged."""
        if self.displayed is None:
            return [self._answers(self._top(head, EVIDENCE_DEPTH)) for head in heads]
        condensed: list[Answers] = []
        for head in heads:
            top = self._top(head, _CONDENSED_FROM)
            pairs = zip(top, self.displayed, strict=True)
            top = without(top, np.stack([~np.isin(line, visible) for line, visible in pairs]))
            condensed.append(self._answers(top))
        return condensed

    def bounded(self, report: GateReport, before: Head, after: Head) -> GateReport:
        """The report, refused if rankings with what was never shown fall by more than the margin."""
        if self.displayed is None or report.verdict == "refused":
            return report
        now, then = (self._answers(self._top(head, DEPTH)).all.mean() for head in (before, after))
        if now - then <= report.gate.margin:
            return report
        reason = f"with documents that were never shown nDCG@10 falls from {now:.4f} to {then:.4f}"
        return replace(report, verdict="refused", reason=reason)

    def _top(self, head: Head, depth: int) -> Int64[np.ndarray, "queries depth"]:
        return self.ranking.top(head, depth, hop_strength=head.hop_strength.item())

    def _answers(self, top: Int64[np.ndarray, "queries depth"]) -> Answers:
        relevant = Relevant(self.examples.relevant)
        values, precisions = relevant.ndcg_at_10(top), relevant.average_precision(top)
        unseen = [np.where(self.seen, np.nan, of) for of in (values, precisions)]
        return Answers(values, self.seen, unseen[0], precisions, unseen[1])


def _of_keys(pages: Iterable[Page], only: Several[str] | None, without: Several[str]) -> Iterator[Page]:
    for page in pages:
        events = tuple(
            event for event in page.events if event.key not in without and (only is None or event.key in only)
        )
        if events:
            yield Page(page.impression, events)
