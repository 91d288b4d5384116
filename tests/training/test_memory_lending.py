"""Each query of a pool is answered as by a memory that was fitted without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.training.topics import DOCUMENTS, TOPICS, queries_of, topics_in

from dsearch.attention.retrieval.memory import ALIKE
from dsearch.engine import SearchEngine
from dsearch.engine.ranking.memory import SnapshotMemory
from dsearch.training import Examples, examples_from_judgements
from dsearch.training.memory import MemorySetting, memory_of
from dsearch.training.memory_values import PoolLending, hidings_of

SETTING = MemorySetting(0.8, 0.05, 0.5)


@pytest.fixture
def examples(engine: SearchEngine) -> Examples:
    """Queries that mostly are alone in judging their documents."""
    topics = topics_in(engine)
    texts, _ = queries_of()
    grades = {query: {f"d{at // DOCUMENTS % TOPICS}-{at % DOCUMENTS}": 1.0} for at, query in enumerate(texts)}
    return examples_from_judgements(topics, texts, grades).remembering()


@pytest.mark.parametrize(("with_hidden", "lending"), [(False, 1.0), (True, 1.0), (False, 0.5), (True, 0.25)])
def test_a_query_is_answered_as_by_a_memory_without_its_row(
    examples: Examples, with_hidden: bool, lending: float
) -> None:
    setting = SETTING._replace(lending=lending)
    hidden = hidings_of(examples)[0] if with_hidden else None
    whole, memory = memory_of(examples, setting), memory_of(examples, setting, hidden=hidden)
    assert whole is not None
    assert memory is not None
    snapshot, states = examples.snapshot, torch.as_tensor(examples.states)
    every = np.tile(np.arange(snapshot.positions), (len(examples), 1))
    every[:, -1] = -1
    scores = PoolLending(whole, snapshot, every).without_own(memory, states).scores(memory, states)
    moved = 0
    for number in range(len(examples)):
        others = examples.subset([at for at in range(len(examples)) if at != number])
        without = memory_of(others, setting, hidden=hidden)
        assert without is not None
        state, pool = states[number : number + 1], every[number : number + 1]
        refitted = SnapshotMemory(without, snapshot).scores(without(state, above=ALIKE), pool)
        assert torch.allclose(scores[number : number + 1], refitted, atol=1e-5)
        kept = SnapshotMemory(memory, snapshot).scores(memory(state, above=ALIKE), pool)
        moved += not torch.allclose(kept, refitted, atol=1e-3)
    assert moved > 10  # leaving the row out of the attention alone is something else
