"""Each option of a report and of reading judgements reaches every part of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.corpus import Problems
from dsearch.errors import InvalidSource
from dsearch.evaluation import report as report_module
from dsearch.evaluation.judged_data import read_judged_data
from dsearch.evaluation.report import bootstrap_columns, bootstrap_mean, build_report, paired_bootstrap

MEASURE = "nDCG@10"
DENSE = {"q1": 0.5, "q2": 0.75, "q3": 1.0, "q4": 0.25}
BOTH = {"q1": 0.25, "q2": 0.75, "q3": 0.5, "q4": 0.125}


def test_samples_and_seed_reach_every_interval_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def record(values: Any, samples: int = 10_000, seed: int = 0) -> Any:
        given.append((samples, seed))
        return bootstrap_columns(values, samples, seed)

    monkeypatch.setattr(report_module, "bootstrap_columns", record)
    systems = {"dense": {MEASURE: DENSE}, "hybrid": {MEASURE: BOTH}}
    report = build_report(systems, "hybrid", {"seen": ["q1", "q2"]}, left_out=3, samples=37, seed=29)
    assert report.better_leg is not None
    assert (report.baseline, report.left_out, {line.group for line in report.lines}) == (
        "hybrid",
        3,
        {"all", "seen"},
    )
    assert given == [(37, 29)] * 3  # of all, of the group, of the better leg


@pytest.mark.parametrize("more", [{"samples": 11}, {"seed": 5}])
def test_each_way_of_a_bootstrap_has_the_same_draws(more: dict[str, int]) -> None:
    differences = {query: DENSE[query] - BOTH[query] for query in DENSE}
    (column,) = bootstrap_columns(np.array(list(differences.values()))[:, None], **more)
    assert bootstrap_mean(differences, **more) == column
    assert paired_bootstrap(DENSE, BOTH, **more) == column
    assert paired_bootstrap(DENSE, BOTH) != column


FORMS = {
    "judged.csv": "query,document,grade\nq1,d7,2\n",
    "judged.tsv": "q1\td7\t2\n",
    "judged.jsonl": '{"query": "q1", "document": "d7", "grade": 2}\n',
    "judged.trec": "q1 0 d7 2\n",
    "qrels/given.tsv": "query-id\tcorpus-id\tscore\nq1\td7\t2\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_problems_of_queries_are_collected_in_every_form(tmp_path: Path, form: str) -> None:
    queries = [json.dumps({"_id": "q1", "text": "river"}), "no JSON"]
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    (tmp_path / "corpus.jsonl").write_text("")
    file = tmp_path / form
    file.parent.mkdir(exist_ok=True)
    file.write_text(FORMS[form])
    path = tmp_path if "/" in form else file
    problems = Problems()
    data = read_judged_data(path, "given", problems)
    assert [(query.id, query.text) for query in data.queries] == [("q1", "river")]
    assert [pair[1:] for pair in data.pairs] == [("q1", "d7", 2.0)]
    assert problems.count == 1
    with pytest.raises(InvalidSource, match=r"queries\.jsonl:2"):
        read_judged_data(path, "given")


def test_problems_of_judgements_in_json_are_collected(tmp_path: Path) -> None:
    file = tmp_path / "judged.jsonl"
    file.write_text(FORMS["judged.jsonl"] + "no JSON\n")
    problems = Problems()
    assert [pair.document for pair in read_judged_data(file, "given", problems).pairs] == ["d7"]
    assert problems.count == 1
    with pytest.raises(InvalidSource, match=r"judged\.jsonl:2"):
        read_judged_data(file, "given")
