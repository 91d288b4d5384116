from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.errors import InvalidRequest, InvalidSource
from dsearch.evaluation import read_trec, write_trec
from dsearch.evaluation.qrels import strictly_decreasing

SCORES = st.lists(st.floats(-1e30, 1e30), max_size=30)
IDS = st.text(st.characters(blacklist_categories=("Z", "C")), min_size=1, max_size=8)


def written_scores(path):
    return [line.split()[4] for line in path.read_text(encoding="utf-8").splitlines()]


@given(SCORES)
def test_written_scores_fall_strictly_even_in_single_precision(tmp_path_factory, scores):
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_trec({"q": [(f"d{n}", score) for n, score in enumerate(scores)]}, path)
    texts = written_scores(path)
    for kind in (float, np.float32):
        values = [kind(text) for text in texts]
        assert all(above > below for above, below in pairwise(values))


@given(st.dictionaries(IDS, st.lists(IDS, unique=True, min_size=1, max_size=6), max_size=4))
def test_order_survives_writing_and_reading_whatever_the_scores(tmp_path_factory, rankings):
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_trec(
        {query: [(document, 0.5) for document in ranking] for query, ranking in rankings.items()}, path
    )
    assert {query: [d for d, _ in ranking] for query, ranking in read_trec(path).items()} == rankings


def test_ties_and_differences_below_single_precision_are_nudged_down():
    lowered = strictly_decreasing([1.0, 1.0, 1.0 - 1e-12, 0.5, 0.75])
    assert lowered[0] == 1.0
    assert 1.0 > lowered[1] > lowered[2] > 0.999999
    assert lowered[3] == 0.5
    assert lowered[4] == np.nextafter(np.float32(0.5), np.float32(0))  # the order wins over the score


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e39])
def test_scores_that_no_evaluator_reads_are_refused_and_nothing_is_written(tmp_path, score):
    with pytest.raises(InvalidRequest, match="query 'q', rank 2"):
        write_trec({"q": [("a", 2e38), ("b", score)]}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("query", "document", "tag"), [("a b", "d", "t"), ("q", "d\t1", "t"), ("q", "d", "")]
)
def test_ids_that_the_format_cannot_hold_are_refused(tmp_path, query, document, tag):
    with pytest.raises(InvalidRequest, match="no blanks"):
        write_trec({query: [(document, 1.0)]}, tmp_path / "run", tag)


def test_duplicates_are_refused_on_both_sides(tmp_path):
    with pytest.raises(InvalidRequest, match="ranked twice"):
        write_trec({"q": [("a", 2.0), ("a", 1.0)]}, tmp_path / "run")
    (tmp_path / "run").write_text("q Q0 a 1 0 t\nq Q0 a 2 -1 t\n")
    with pytest.raises(InvalidSource, match=r"run:2: document 'a' stands twice"):
        read_trec(tmp_path / "run")


def test_reading_sorts_like_trec_eval(tmp_path):
    (tmp_path / "run").write_text("q Q0 a 1 1.0 t\nq Q0 b 2 3.0 t\n\nq Q0 c 3 1.0 t\n")
    assert read_trec(tmp_path / "run") == {"q": [("b", 3.0), ("c", 1.0), ("a", 1.0)]}


@pytest.mark.parametrize(
    ("line", "message"),
    [("q Q0 a 1 x t", "score 'x'"), ("q Q0 a 1 nan t", "score 'nan'"), ("q a 1", "3 columns")],
)
def test_bad_lines_are_named(tmp_path, line, message):
    (tmp_path / "run").write_text(f"q Q0 z 1 9 t\n{line}\n")
    with pytest.raises(InvalidSource, match=f"run:2: .*{message}"):
        read_trec(tmp_path / "run")
