"""Held-out queries: how they are chosen, and how a head does on them, seen and unseen documents apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from dsearch.attention.head import Head
from dsearch.evaluation import evaluate
from dsearch.training.examples import Examples
from dsearch.training.trainer import corpus_embeddings

MIN_SLICE = 20  # queries; with fewer a slice says too little to choose by
_QUERIES_AT_A_TIME = 32
_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean nDCG@10 on held-out queries; None for a slice with fewer than `MIN_SLICE` of them."""

    all: float
    seen: float | None
    unseen: float | None


class Validation:
    """Held-out examples over the whole corpus, ranked exactly.

    Args:
        held_out: the queries.
        training: those trained on; a document relevant to one of them is *seen*.
        keywords: whether the keyword head has a part in the ranking.
    """

    def __init__(self, held_out: Examples, training: Examples, *, keywords: bool = True):
        self.examples, self._keywords = held_out, keywords
        trained_on = {int(at) for positions, _ in training.relevant for at in positions}
        self.seen: Bool[np.ndarray, " queries"] = np.array(
            [any(int(at) in trained_on for at in positions) for positions, _ in held_out.relevant]
        )
        self._corpus = corpus_embeddings(held_out.snapshot)

    def scores(self, values: Float[np.ndarray, " queries"]) -> Scores:
        """Means of what `ndcg` gave."""

        def slice_of(which: np.ndarray) -> float | None:
            return float(values[which].mean()) if which.sum() >= MIN_SLICE else None

        return Scores(float(values.mean()), slice_of(self.seen), slice_of(~self.seen))

    @torch.inference_mode()
    def ndcg(self, head: Head) -> Float[np.ndarray, " queries"]:
        """nDCG@10 of every held-out query."""
        run: dict[str, list[tuple[str, float]]] = {}
        for start in range(0, len(self.examples), _QUERIES_AT_A_TIME):
            stop = min(start + _QUERIES_AT_A_TIME, len(self.examples))
            scores, found = self._rank(head, start, stop)
            for query in range(stop - start):
                ids = [str(at) for at in found[query].tolist()]
                run[str(start + query)] = list(zip(ids, scores[query].tolist(), strict=True))
        qrels = {
            str(query): {str(int(at)): float(grade) for at, grade in zip(positions, grades, strict=True)}
            for query, (positions, grades) in enumerate(self.examples.relevant)
        }
        values = evaluate(run, qrels, ["nDCG@10"])["nDCG@10"]
        return np.array([values[str(query)] for query in range(len(self.examples))])

    def _rank(self, head: Head, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        device = head.temperature.device
        states = torch.as_tensor(self.examples.states[start:stop]).to(device)
        folded = head.fold(head.queries(states))
        logits = torch.einsum("bhd,nd->bhn", folded, self._corpus.to(device))
        if self._keywords:
            keyword = self.examples.snapshot.all_keyword_scores(self.examples.texts[start:stop])
            logits = logits + head.keyword_weight[:, None] * torch.as_tensor(keyword).to(device)[:, None]
        log_heads = (logits / head.temperature).log_softmax(-1)
        log_weights = (head.mixture.log()[:, None] + log_heads).logsumexp(1)
        if self.examples.snapshot.excluded is not None:
            hidden = torch.as_tensor(self.examples.snapshot.excluded).to(device)
            log_weights = log_weights.masked_fill(hidden, -torch.inf)
        best = log_weights.topk(min(_DEPTH, log_weights.shape[1]), dim=1)
        return best.values.cpu(), best.indices.cpu()


def hold_out(examples: Examples, share: float, seed: int) -> tuple[list[int], list[int]]:
    """(trained on, held out): indices; half of the held-out queries share no document with the others.

    Queries are drawn in groups that are connected by documents, so that a group held out whole has unseen
    documents; the other half is drawn query by query. Where all queries are connected, all are drawn so.
    """
    count = len(examples)
    wanted = round(share * count)
    generator = np.random.default_rng(seed)
    group = _groups(examples)
    held: list[int] = []
    for chosen in generator.permutation(max(group) + 1):
        members = [query for query in range(count) if group[query] == chosen]
        if len(held) + len(members) <= (wanted + 1) // 2:
            held.extend(members)
        if len(held) >= wanted // 2:
            break
    rest = [int(query) for query in generator.permutation(count) if int(query) not in set(held)]
    held.extend(rest[: wanted - len(held)])
    trained_on = sorted(set(range(count)) - set(held))
    return trained_on, sorted(held)


def _groups(examples: Examples) -> list[int]:
    """A number for each query, equal for queries that are connected by shared documents."""
    parent = list(range(len(examples)))

    def root(query: int) -> int:
        while parent[query] != query:
            parent[query] = parent[parent[query]]
            query = parent[query]
        return query

    first: dict[int, int] = {}
    for query, (positions, _) in enumerate(examples.relevant):
        for at in positions.tolist():
            parent[root(query)] = root(first.setdefault(at, query))
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(query), len(numbers)) for query in range(len(examples))]
