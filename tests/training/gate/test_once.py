"""What is worked out once for all parts of a training changes nothing in what comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine import Collection, PassageOptions, SearchEngine, Snapshot
from dsearch.training import Examples, TrainingOptions, TrainingResult, examples_from_judgements, finetune
from dsearch.training.ranking import Ranking
from dsearch.training.tune import HOP_STRENGTHS, WEIGHTINGS, Setting, head_of
from dsearch.types import Document

COUNT = 24
QUERIES = {f"q{i:02}": f"question{i % 20} colour{i % 3} asked{i}" for i in range(COUNT)}
QRELS = {f"q{i:02}": {f"d{i}": 1.0} for i in range(COUNT)}


def filled(engine: SearchEngine, passages: PassageOptions | None = None) -> Collection:
    """Built documents, fresh ones, and deleted ones of both."""
    collection = engine.create("synonyms", passages=passages)
    texts = [
        f"answer{i % 20} colour{i % 3} filler{i} " + f"more{i % 7} " * (i % 5 * 6) for i in range(COUNT + 9)
    ]
    documents = [Document(id=f"d{i}", text=text) for i, text in enumerate(texts)]
    collection.ingest(documents[:20])
    collection.upsert(documents[20:])
    collection.delete(["d18", f"d{COUNT + 2}"])
    return collection


def known(trained: TrainingResult) -> dict[str, Any]:
    """All but how long it took."""
    tuned = {**(trained.record["tuned"] or {}), "seconds": None}
    return {**trained.record, "tuned": tuned, "seconds": None}


@pytest.mark.parametrize(("heads", "passages"), [(1, None), (2, PassageOptions(tokens=16, overlap=4))])
def test_a_training_that_remembers_gives_the_same_head_and_report(
    engine: SearchEngine, heads: int, passages: PassageOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = examples_from_judgements(filled(engine, passages), QUERIES, QRELS)
    options = TrainingOptions(epochs=2, batch_size=8, learning_rate=1e-2, folds=2, heads=heads)
    asked: Counter[tuple[float, float, str]] = Counter()
    plain = Snapshot.all_keyword_scores

    def counted(self: Snapshot, queries: Sequence[str]) -> np.ndarray:
        asked.update((self.keyword.k1, self.keyword.b, query) for query in queries)
        return plain(self, queries)

    monkeypatch.setattr(Snapshot, "all_keyword_scores", counted)
    # The confidence of answers is fitted to rankings as served: of the layer, which asks anew.
    module = import_module("dsearch.training.finetune.head")  # `training.finetune` is a function
    monkeypatch.setattr(module, "_held_out", lambda folds, served: None)
    once = finetune(examples, options)
    assert set(asked.values()) == {1}
    assert len({key[:2] for key in asked}) == 1 + len(WEIGHTINGS)
    assert examples.cache is None
    monkeypatch.setattr(Examples, "remembering", lambda self: self)
    always = finetune(examples, options)
    assert max(asked.values()) > 4
    assert known(once) == known(always)
    state = always.head.state_dict()
    assert state.keys() == once.head.state_dict().keys()
    for name, tensor in once.head.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("passages", [None, PassageOptions(tokens=16, overlap=4)])
@pytest.mark.parametrize("bm25", [None, (0.9, 0.4)])
def test_heads_that_project_alike_rank_as_each_by_itself(
    engine: SearchEngine, passages: PassageOptions | None, bm25: tuple[float, float] | None
) -> None:
    excluded = {f"q{i:02}": {f"d{i + 1}"} for i in range(0, 20, 3)}
    examples = examples_from_judgements(filled(engine, passages), QUERIES, QRELS, excluded)
    assert examples.hidden is not None
    heads = [head_of(Setting(weight, 0.0, bm25), 32) for weight in (0.0, 0.4, 1.0, 30.0)]
    strengths = [0.0, *HOP_STRENGTHS]
    together = Ranking(examples).tops_of_alike(heads, strengths)
    for head, tops in zip(heads, together, strict=True):
        for strength, top in zip(strengths, tops, strict=True):
            alone = Ranking(examples).top(head, hop_strength=strength)
            np.testing.assert_array_equal(top, alone, err_msg=str(strength))
    assert not np.array_equal(together[0][0], together[3][0])
