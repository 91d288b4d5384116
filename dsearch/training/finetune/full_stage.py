"""A second stage behind an encoder of scope full, fitted over the documents as that encoder sees them.

The encoder learned without the held-out queries, so the stage is fitted to these, and judged by them in
folds; documents that the encoder learned by count as seen. It becomes part of the same version, for tokens of
queries and of documents belong to its encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Int64

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import LearningEncoder
from dsearch.engine import Collection, EncodedDocuments, Snapshot
from dsearch.engine.models.documents import encoded_state
from dsearch.engine.snapshot import NONE, query_tokens
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.second_stage import FoldHeads, TrainedStage, train_second_stage
from dsearch.training.gate.gate import Gate

_BASE = "head"


def train_stage_of_full(
    collection: Collection,
    examples: Examples,
    held_out: Sequence[int],
    encoder: LearningEncoder,
    documents: EncodedDocuments,
    head: Head,
    *,
    gate: Gate | None,
    seed: int,
) -> TrainedStage | None:
    """Fit a second stage to follow a trained encoder; None without tokens, or with too few queries.

    The documents are built in a temporary folder, as large as their generation will be.

    Args:
        collection: of the documents.
        examples: judged queries, those that the encoder learned by among them.
        held_out: indices of those that it did not learn by.
        encoder: the trained one.
        documents: encoded by it, with their tokens.
        head: ranks by its embeddings.
        gate: requirements.
        seed: random seed of the folds.
    """
    if documents.tokens is None or not held_out:
        return None
    texts = [examples.texts[at] for at in held_out]
    states, raw = encoder.encode_tokens(texts, "query")
    learned = sorted(set(range(len(examples))) - set(held_out))
    mine = replace(examples.subset([*held_out, *learned]), cache=None)
    mine.states[: len(held_out)] = states
    own = range(len(held_out))
    with TemporaryDirectory() as folder:
        state = encoded_state(Path(folder), collection.store, documents, encoder.identity)
        over = _over(mine, state)
        tokens = [query_tokens(of, text, over.snapshot) for of, text in zip(raw, texts, strict=True)]
        fold = FoldHeads(list(own), {_BASE: head})
        return train_second_stage(
            over, tokens, [fold], _BASE, gate=gate, seed=seed, learned=range(len(own), len(mine))
        )


def _over(examples: Examples, state: Snapshot) -> Examples:
    """The examples over another state with the same documents, whose positions differ."""

    def moved(positions: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " _"]:
        return state.positions_of(examples.snapshot.rows(positions))

    relevant = [(moved(at), grades) for at, grades in examples.relevant]
    relevant = [(at[at != NONE], grades[at != NONE]) for at, grades in relevant]
    hidden = None if examples.hidden is None else [moved(at) for at in examples.hidden]
    return replace(examples, snapshot=state, relevant=relevant, hidden=hidden)
