"""Problems of sources: all are counted, the first are kept, and a strict collector keeps none."""

from __future__ import annotations

import pytest

from dsearch.corpus.formats.lines import Problems, SourceProblem
from dsearch.errors import InvalidSource


def test_a_problem_names_its_file_and_its_line_where_it_has_one() -> None:
    assert str(SourceProblem("a.csv", 3, "broken row")) == "a.csv:3: broken row"
    assert str(SourceProblem("a.pdf", None, "a scan")) == "a.pdf: a scan"


def test_all_are_counted_and_as_many_kept_as_wanted() -> None:
    told: list[SourceProblem] = []
    problems = Problems(keep=2, on_problem=told.append)
    for number, source in enumerate(["a", "b", "a"], start=1):
        problems.add(source, number, "wrong")
    assert problems.count == 3
    assert problems.sources == {"a", "b"}
    assert [str(problem) for problem in problems.first] == ["a:1: wrong", "b:2: wrong"]
    assert [problem.line for problem in told] == [1, 2, 3]
    assert Problems().keep == 100


def test_a_strict_collector_raises_and_keeps_nothing() -> None:
    told: list[SourceProblem] = []
    problems = Problems(strict=True, on_problem=told.append)
    with pytest.raises(InvalidSource, match=r"^a:1: wrong$"):
        problems.add("a", 1, "wrong")
    assert (problems.count, problems.first, problems.sources, told) == (0, [], set(), [])
