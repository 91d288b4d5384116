"""Judge a head that learned from the corpus by queries of users and their like, as they are served.

The sentences that it learned from are long and have no keywords beside them; users have. So the head is
compared with the live version in hybrid search, hops and all, on

    synthetic    queries made of documents that it did not learn from, in turn the title, the beginning of the
                 first sentence, and some words of a stretch of it, as remembered
    logged       queries that people reacted to, where feedback keeps enough; clicks and thumbs are judgements

These may refuse the head, not admit it: words of documents flatter keywords, and anybody can click. Clicks
are on what was shown, so logged queries are ranked without documents that nobody was shown (feedback.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsearch.corpus import sentences
from dsearch.corpus.made_queries import known_item_query
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.training.data.examples import Examples, make_examples
from dsearch.training.finetune.feedback import FromFeedback, TrustedSlice, examples_from_feedback
from dsearch.training.finetune.head import TrainingResult
from dsearch.training.gate.decision import LIKE_USERS, LOGGED, SLICE_PRIOR, posterior
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.loop.loop import Observer
from dsearch.training.options import TrainingOptions
from dsearch.types import Document, query_name

MOST_JUDGING = 400
FEWEST_JUDGING = 20
_SHARE = 5  # one document of so many judges
_FIRST_WORDS = 10
_FEWEST_WORDS = 2


def user_like_queries(documents: Sequence[Document], seed: int = 0) -> list[tuple[str, str]]:
    """One query of each document that has one: (query, id); of several documents with one query none."""
    pairs: list[tuple[str, str]] = []
    for number, document in enumerate(documents):
        kinds = [_title(document), _beginning(document), known_item_query(document, seed)]
        turn = number % len(kinds)
        query = next((kind for kind in kinds[turn:] + kinds[:turn] if kind is not None), None)
        if query is not None:
            pairs.append((query, document.id))
    times = Counter(query_name(query) for query, _ in pairs)
    return [(query, id) for query, id in pairs if times[query_name(query)] == 1]


def with_judging_queries(
    collection: Collection, examples: Examples, seed: int = 0
) -> tuple[Examples, Examples | None]:
    """The examples without those of some documents, and queries made of these; None if there are too few.

    Args:
        collection: collection of the documents.
        examples: examples of the corpus.
        seed: random seed of the choice of documents.
    """
    snapshot = examples.snapshot
    visible = snapshot.visible()
    count = min(MOST_JUDGING, len(visible) // _SHARE)
    drawn = np.sort(np.random.default_rng([seed, 5]).permutation(visible)[:count])
    documents = collection.store.documents(snapshot.rows(drawn))
    position_of = dict(zip((document.id for document in documents), drawn.tolist(), strict=True))
    pairs = user_like_queries(documents, seed)
    others = [number for number, (at, _) in enumerate(examples.relevant) if not np.isin(at, drawn).any()]
    if len(pairs) < FEWEST_JUDGING or not others:
        return examples, None
    relevant = [(np.array([position_of[id]], np.int64), np.ones(1, np.float32)) for _, id in pairs]
    judging = make_examples(collection, snapshot, [query for query, _ in pairs], relevant, {})
    return examples.subset(others), replace(judging, source="documents")


def _title(document: Document) -> str | None:
    words = document.title.split()
    return " ".join(words) if len(words) >= _FEWEST_WORDS and document.text.strip() else None


def _beginning(document: Document) -> str | None:
    first = next(iter(sentences(document.text)), "")
    words = first.rstrip(".!?…。！？").split()[:_FIRST_WORDS]
    return " ".join(words).lower() if len(words) > _FEWEST_WORDS else None


@dataclass(frozen=True, slots=True)
class ServedQueries:
    """Queries that judge a head which learned from the corpus.

    Attributes:
        synthetic: of documents that it did not learn from; None where there are too few.
        logged: that people reacted to; None where there are too few.
    """

    synthetic: Examples | None
    logged: FromFeedback | None

    def judged(
        self,
        collection: Collection,
        trained: TrainingResult,
        gate: Gate,
        *,
        seed: int = 0,
        observer: Observer | None = None,
    ) -> TrainingResult:
        """The result, refused if either kind of query may lose too much by the head.

        Where the live version cannot be compared with it (an encoder, documents or a score of its own),
        nothing is judged.
        """
        live = collection.live_model
        head = collection.head(live)
        if collection.encoder_of(live).identity != collection.encoder.identity:
            return trained
        if head.learned_score is not None or collection.has_documents_of(live):
            return trained
        options = TrainingOptions(keywords=True)
        verdict, reports = trained.gate, dict[str, Any]()
        kinds = (
            (LIKE_USERS, "gate_on_user_queries", self.synthetic),
            (LOGGED, "gate_on_logged_queries", self.logged),
        )
        for kind, entry, queries in kinds:
            if queries is None:
                continue
            examples = queries.examples if isinstance(queries, FromFeedback) else queries
            served = TrustedSlice.of(examples.subset([]), queries, options)
            before, after = served.answers([head, trained.head])
            report = judge(before, after, gate, need_slices=False, seed=seed)
            whole = report.slices[0]
            assert whole.evidence is not None
            assert whole.deviation is not None
            change = posterior(whole.evidence.mean, whole.deviation, whole.queries, SLICE_PRIOR)
            harm = change.below(-gate.margin)
            sentence = (
                f"{len(examples)} {kind}, with keywords: {report.measure} "
                f"{whole.before:.4f} → {whole.after:.4f}; the probability is {harm:.2f} that they lose more "
                f"than {gate.margin:g}"
            )
            if observer is not None:
                observer.remark(sentence)
            if verdict.passed and harm > gate.harm:
                verdict = replace(verdict, verdict="refused", reason=f"{sentence} (allowed {gate.harm:g})")
            reports[entry] = report.to_dict()
        return trained.judged(verdict, **reports)


def logged_queries(collection: Collection, seed: int = 0) -> FromFeedback | None:
    """Queries that people reacted to, at most `MOST_JUDGING` of them; None where there are too few.

    Args:
        collection: collection of the feedback.
        seed: random seed of the choice among many.

    Raises:
        CorruptData: the feedback is damaged.
    """
    try:
        source = examples_from_feedback(collection)
    except InvalidRequest:  # none that can be used
        return None
    count = len(source.examples)
    if count < FEWEST_JUDGING:
        return None
    drawn = np.sort(np.random.default_rng([seed, 6]).permutation(count)[:MOST_JUDGING])
    return replace(source, examples=source.examples.subset(drawn.tolist()))
