"""Training examples: what judgements become, every part of a subset, and negatives below their margin."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.training import examples_from_judgements
from dsearch.training.data.examples import Examples, digest_of, mined_negatives

QUERIES = {"q1": "apple", "q2": "bread", "q3": " ", "q4": "cheese", "q5": "dough"}
QRELS = {
    "q1": {"d0": 1.0, "d1": 2.0, "gone": 1.0},
    "q2": {"d1": 1.0, "d2": 0.0},
    "q3": {"d1": 1.0},
    "q4": {"gone": 3.0},
    "q5": {"d4": 1.0},
}


def relevant(collection: Collection, examples: Examples) -> dict[str, dict[str, float]]:
    return {
        text: dict(zip(collection.ids_at(examples.snapshot, at[None])[0], grades.tolist(), strict=True))
        for text, (at, grades) in zip(examples.texts, examples.relevant, strict=True)
    }


def test_judgements_become_examples_and_the_rest_is_counted(collection: Collection) -> None:
    examples = examples_from_judgements(collection, QUERIES, QRELS)
    assert relevant(collection, examples) == {
        "apple": {"d0": 1.0, "d1": 2.0},
        "bread": {"d1": 1.0},
        "dough": {"d4": 1.0},
    }
    assert examples.left_out == {
        "queries without text": 1,
        "queries without a known positive": 1,
        "unknown documents": 2,
    }
    assert (examples.hidden, examples.teacher, examples.source) == (None, None, "judgements")
    np.testing.assert_array_equal(examples.states, collection.encoder.encode_queries(examples.texts))
    with pytest.raises(InvalidRequest, match="no usable training query: queries without a known positive: 1"):
        examples_from_judgements(collection, QUERIES, {"q4": QRELS["q4"]})


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e39])
def test_what_is_no_number_is_refused_before_a_loss_diverges_by_it(
    collection: Collection, number: float
) -> None:
    bad = {**QRELS, "q5": {"d4": 1.0, "d3": number}}
    for judgements, teacher in ((bad, None), (QRELS, bad)):
        with pytest.raises(InvalidRequest, match=r"query 'q5' and document 'd3': .*; use finite grades"):
            examples_from_judgements(collection, QUERIES, judgements, teacher=teacher)


def test_what_is_excluded_of_a_query_is_neither_learned_nor_ranked_for_it_alone(
    collection: Collection,
) -> None:
    exclude = {"q1": ["d1", "d9", "gone"], "q5": ["d4"]}
    examples = examples_from_judgements(collection, QUERIES, QRELS, exclude)
    assert relevant(collection, examples) == {"apple": {"d0": 1.0}, "bread": {"d1": 1.0}}
    assert examples.left_out["queries without a known positive"] == 2
    assert examples.hidden is not None
    hidden = [collection.ids_at(examples.snapshot, at[None])[0] for at in examples.hidden]
    assert hidden == [["d1", "d9"], []]


def test_a_teacher_scores_what_is_there(collection: Collection) -> None:
    teacher = {"q1": {"d3": 0.5, "gone": 9.0, "d0": -1.0}}
    examples = examples_from_judgements(collection, QUERIES, QRELS, teacher=teacher)
    assert examples.teacher is not None
    scored = [
        dict(zip(collection.ids_at(examples.snapshot, at[None])[0], scores.tolist(), strict=True))
        for at, scores in examples.teacher
    ]
    assert scored == [{"d3": 0.5, "d0": -1.0}, {}, {}]


def test_a_subset_has_every_part_of_its_examples(collection: Collection) -> None:
    plain = examples_from_judgements(collection, QUERIES, QRELS)
    count = len(plain)
    numbers = [np.array([at]) for at in range(count)]
    examples = replace(
        plain,
        teacher=[(at, at.astype(np.float32)) for at in numbers],
        weights=np.arange(count, dtype=np.float32),
        hidden=numbers,
        source="clicks",
        cache={},
        negatives=np.array([7]),
    )
    part = examples.subset([2, 0])
    assert part.texts == [plain.texts[2], plain.texts[0]]
    np.testing.assert_array_equal(part.states, plain.states[[2, 0]])
    assert [at.tolist() for at, _ in part.relevant] == [plain.relevant[n][0].tolist() for n in (2, 0)]
    assert part.teacher is not None
    assert part.weights is not None
    assert part.hidden is not None
    assert [at.tolist() for at, _ in part.teacher] == [at.tolist() for at in part.hidden] == [[2], [0]]
    assert part.weights.tolist() == [2, 0]
    for name in ("snapshot", "digest", "source", "cache", "negatives"):
        assert getattr(part, name) is getattr(examples, name), name
    assert part.left_out == {}
    told = {"texts", "states", "relevant", "teacher", "weights", "hidden", "left_out"}
    told |= {"snapshot", "digest", "source", "cache", "negatives"}
    assert {field.name for field in fields(Examples)} == told


def test_what_is_made_once_is_shared_by_all_parts(collection: Collection) -> None:
    examples, calls = examples_from_judgements(collection, QUERIES, QRELS), []
    for of in (examples, examples.subset([0])):
        of.cached("x", lambda: calls.append(1))
    assert len(calls) == 2
    remembering = examples.remembering()
    for of in (remembering, remembering.subset([0]), remembering.remembering()):
        assert of.cached("x", lambda: len(calls)) == 2
        calls.append(1)


def test_the_digest_is_of_queries_documents_and_grades() -> None:
    one = [(np.array([1, 2]), np.array([1, 2], np.float32))]
    digest = digest_of(["a"], one)
    assert digest_of(["a"], [(one[0][0].copy(), one[0][1].copy())]) == digest
    others = [
        digest_of(["b"], one),
        digest_of(["a"], [(np.array([1, 3]), one[0][1])]),
        digest_of(["a"], [(one[0][0], np.array([1, 1], np.float32))]),
    ]
    assert len({digest, *others}) == 4


def test_negatives_are_below_the_margin_and_no_answers() -> None:
    candidates = np.array([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    scores = np.array([[0.9, 0.8, 0.75, 0.7, 0.1]] * 2, np.float32)
    answers = [np.array([5]), np.array([2, 9])]
    best = np.array([0.8, 1.0], np.float32)

    def mined(count: int, margin: float = 0.95) -> list[list[int]]:
        drawn = mined_negatives(
            candidates,
            scores,
            answers,
            best,
            count=count,
            margin=margin,
            generator=torch.Generator().manual_seed(0),
        )
        return [sorted(of.tolist()) for of in drawn]

    assert mined(9) == [[3, 4], [1, 3, 4, 5]]  # below .76 and .95
    assert mined(9, margin=0.9) == [[4], [3, 4, 5]]  # .9 is not below .9
    assert [len(of) for of in mined(2)] == [2, 2]
    assert mined(0) == [[], []]
