"""What a model keeps of its lessons is the gradient that training began with, and tells who pulled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, finetune
from dsearch.training.finetune import head
from dsearch.training.finetune.head import lessons_of
from dsearch.training.registry import register
from dsearch.types import Document

COUNT = 24
QUERIES = {f"q{i:02d}": f"question{i % 8} asked{i} thing{i % 3}" for i in range(COUNT)}
JUDGED = {f"q{i:02d}": {f"d{i}": 2.0, f"d{(i + 12) % COUNT}": 1.0} for i in range(COUNT)}


@pytest.fixture
def synonyms(engine: SearchEngine) -> Collection:
    made = engine.create("synonyms")
    made.ingest([Document(f"d{i}", f"answer{i % 8} filler{i} thing{i % 3}") for i in range(COUNT)])
    made.delete(["d5"])
    return made


@pytest.fixture
def examples(synonyms: Collection) -> Examples:
    return examples_from_judgements(synonyms, QUERIES, JUDGED)


@pytest.mark.parametrize("objective", ["listwise", "judged"])
def test_pulls_are_the_gradient_of_the_loss(examples: Examples, objective: str) -> None:
    """−t ∂L_i/∂M = e_i ⊗ r_i for s(q, d) = e_q · M e_d + w b(q, d), by autograd in float64."""
    weights = np.linspace(0.5, 1.5, len(examples)).astype(np.float32)
    hidden = [np.array([3], np.int64) for _ in range(len(examples))]
    examples = replace(examples, weights=weights, hidden=hidden)
    start = Head(32)
    lessons = lessons_of(examples, start, TrainingOptions(objective=objective))
    state = examples.snapshot
    corpus = torch.as_tensor(state.embeddings(np.arange(state.positions))).double()
    keyword = torch.as_tensor(state.all_keyword_scores(examples.texts)).double()
    out = np.zeros(state.positions, bool) if state.excluded is None else state.excluded.copy()
    if objective == "judged":
        out |= ~np.isin(np.arange(state.positions), np.concatenate([at for at, _ in examples.relevant]))
    out[3] = True
    t, w = start.temperature.item(), start.keyword_weight.item()
    for i, (at, grades) in enumerate(examples.relevant):
        matrix = torch.eye(32, dtype=torch.float64, requires_grad=True)
        query = torch.as_tensor(examples.states[i]).double()
        logits = (corpus @ (matrix.T @ query) + w * keyword[i]) / t
        log_weights = logits.masked_fill(torch.as_tensor(out), -torch.inf).log_softmax(0)
        shares = torch.as_tensor(grades / grades.sum()).double()
        kept = torch.as_tensor(at != 3)
        if not bool(kept.all()):
            continue  # a judged document that is hidden: no loss is finite
        loss = -weights[i] * (shares * log_weights[torch.as_tensor(at)]).sum()
        (gradient,) = torch.autograd.grad(loss, matrix)
        expected = np.outer(lessons.states[i], lessons.pulls[i])
        assert np.allclose(-t * gradient.numpy(), expected, atol=1e-5)


def test_what_pulled_is_what_moved(synonyms: Collection, examples: Examples) -> None:
    """Summed, the lessons' effects go along with what training did to dense scores."""
    trained = finetune(examples, TrainingOptions(epochs=3, folds=0, retention=0.0, decay=0.0, tune=False))
    assert trained.lessons is not None
    learned = trained.lessons
    made = register(synonyms, trained.head, trained.record, passed=False, reason="", lessons=learned)
    effects, changes, own = [], [], []
    for name, text in list(QUERIES.items())[:12]:
        state = synonyms.encoder.encode_queries([text])[0]
        for hit in synonyms.search(text, model=made.version, explain=True, limit=COUNT).hits:
            assert hit.explain is not None
            assert hit.explain.learned is not None
            at = synonyms.store.rows_of([hit.id])[hit.id]
            embedding = synonyms.store.embeddings(np.array([at]))[0]
            lessons = trained.lessons
            effects.append(float(((lessons.states @ state) * (lessons.pulls @ embedding)).sum()))
            changes.append(hit.explain.learned.dense)
            if JUDGED[name].get(hit.id) == 2.0:
                own.append((text, (hit.explain.learned.lessons or [])[0]))
    assert np.corrcoef(effects, changes)[0, 1] > 0.8
    # What answers a training query best was mostly lifted by its own judgement before all others.
    assert np.mean([one.share > 0 and one.query == text for text, one in own]) > 0.5


@pytest.mark.parametrize("source", ["judgements", "clicks", "documents"])
def test_words_are_kept_of_judgements_alone(examples: Examples, source: str) -> None:
    lessons = lessons_of(replace(examples, source=source), Head(32), TrainingOptions())  # type: ignore[arg-type]
    assert (lessons.texts is None) == (source != "judgements")


def test_of_many_queries_some_are_kept(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST", 7)
    lessons = lessons_of(examples, Head(32), TrainingOptions())
    assert len(lessons) == len(lessons.texts or []) == 7
    assert set(lessons.owners) == set(range(7))
