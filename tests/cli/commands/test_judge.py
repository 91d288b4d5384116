"""Judging on the command line: one by one, from files, to files that training takes, and what comes next."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.cli.commands.judge import ENOUGH_TO_TUNE
from dsearch.engine import SearchEngine
from dsearch.evaluation import merged_pairs
from dsearch.evaluation.judged_data import read_judged_data
from dsearch.types import Document


@pytest.fixture
def judging(dsearch: Terminal, tmp_path: Path) -> Terminal:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice([f"word{n}" for n in range(40)], size=12)) for _ in range(30)]
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        engine.create("t").ingest([Document(f"d{n}", text) for n, text in enumerate(texts)])
    return dsearch


def test_a_judgement_is_kept_changed_and_counted(judging: Terminal) -> None:
    code, out, err = judging("judgements", "-c", "t")
    assert (code, out) == (0, "")
    assert "nothing is judged yet; begin with: dsearch judge QUERY ID -c t" in err
    code, out, err = judging("judge", "thing1, please", "d1", "-c", "t")
    assert (code, out) == (0, "t: d1 is the answer\n")
    assert "1 judged query has an answer; 99 are missing" in err
    assert "as before" in judging("judge", "thing1, please", "d1", "-c", "t")[1]
    assert judging("judge", "Thing1,  please", "d1", "d2", "-g", "1", "-c", "t")[0] == 0
    assert judging("judge", "thing4", "d9", "--grade", "0", "--client", "ann", "-c", "t")[0] == 0
    own = json.loads(judging("judgements", "-c", "t", "--json")[1])
    assert own["judgements"] == {"thing1, please": {"d1": 1.0, "d2": 1.0}, "thing4": {"d9": 0.0}}
    assert (own["answered"], own["missing"]) == (1, 99)
    assert judging("judgements", "-c", "t", "--client", "ann")[1] == "thing4\n  0  d9\n"
    for id, grade in (("d1", "1"), ("d2", "3"), ("d3", "2")):
        judging("judge", "thing9", id, "-g", grade, "--client", "bob", "-c", "t")
    listed = judging("judgements", "-c", "t", "--client", "bob")[1]
    assert listed == "thing9\n  3  d2\n  2  d3\n  1  d1\n"  # the best first
    code, _, err = judging("judge", "thing1", "nowhere", "-c", "t")
    assert code != 0
    assert "nowhere" in err
    assert judging("judge", "thing1", "d1", "--grade", "4", "-c", "t")[0] == 2
    assert "an empty query" in judging("judge", " ", "d1", "-c", "t")[2]


def test_what_to_do_with_judgements_is_said_in_time(judging: Terminal, tmp_path: Path) -> None:
    said: dict[int, str] = {}
    for n in (1, ENOUGH_TO_TUNE, 99, 100):
        rows = "".join(f"thing{each},d1,3\n" for each in range(n))
        (tmp_path / "j.csv").write_text(f"query,document,grade\n{rows}")
        said[n] = judging("judgements", "import", tmp_path / "j.csv", "-c", "t")[2].strip()
    assert said[1] == "1 judged query has an answer; 99 are missing until a training can be told from chance"
    export = "dsearch judgements export FILE -c t"
    assert said[ENOUGH_TO_TUNE].endswith(
        f"with fewer, tuning gains more: {export}, then dsearch tune --data FILE -c t"
    )
    assert "; 1 is missing until" in said[99]
    assert said[100] == (
        "100 judged queries have an answer, enough to tell a gain from chance: "
        f"{export}, then dsearch train --data FILE -c t"
    )


def test_every_format_is_read_back(judging: Terminal, tmp_path: Path) -> None:
    judging("judge", 'say "thing1", please', "d1", "-c", "t")
    judging("judge", 'say "thing1", please', "d2", "-g", "0", "-c", "t")
    for name in ["j.csv", "j.tsv", "j.jsonl", "trec/j.trec", "folder"]:
        path = tmp_path / "files" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        code, out, err = judging("judgements", "export", path, "-c", "t")
        assert (code, out) == (0, f"{path}: 2 judgements of 1 query\n")
        assert err == f"learn from them: dsearch train --data {path} -c t\n"
        data = read_judged_data(path, "train")
        assert [query.text for query in data.queries] == ['say "thing1", please']
        assert merged_pairs(data.pairs) == {data.queries[0].id: {"d1": 3.0, "d2": 0.0}}
    code, _, err = judging("judgements", "export", path, "-c", "t")
    assert code != 0
    assert "exists" in err
    again = json.loads(judging("judgements", "import", path, "-c", "t", "--json")[1])
    assert (again["new"], again["changed"], again["unchanged"]) == (0, 0, 2)
    other = json.loads(judging("judgements", "import", path, "-c", "t", "--client", "b", "--json")[1])
    assert other["new"] == 2
    assert judging("evaluate", "-c", "t", "--data", path, "--split", "train")[0] == 0


def test_what_cannot_be_exported_is_refused(judging: Terminal, tmp_path: Path) -> None:
    code, out, _ = judging("judgements", "export", "-c", "t")
    assert (code, out) == (0, "query,document,grade\n")
    assert "nothing is judged yet" in judging("judgements", "export", tmp_path / "j.csv", "-c", "t")[2]
    judging("judge", "thing1", "d1", "-c", "t")
    assert "end it in .csv" in judging("judgements", "export", tmp_path / "j.xlsx", "-c", "t")[2]
    assert json.loads(judging("judgements", "export", "-c", "t", "--json")[1])["document"] == "d1"
    assert "name another file" in judging("judgements", "export", tmp_path / "no" / "j.csv", "-c", "t")[2]


def test_messages_name_the_home_that_the_group_was_given(judging: Terminal, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for at in (("--home", home, "export"), ("export", "--home", home)):
        code, _, err = judging("judgements", *at, tmp_path / "none.csv", "-c", "t")
        assert (code, f"begin with: dsearch judge --home {home} QUERY ID -c t" in err) == (1, True), err
    assert judging("judge", "word1", "d1", "-c", "t")[0] == 0
    file = tmp_path / "my judgements.csv"
    code, _, err = judging("judgements", "--home", home, "export", file, "-c", "t")
    assert (code, err) == (0, f"learn from them: dsearch train --home {home} --data '{file}' -c t\n")


def test_a_file_is_imported_and_what_is_wrong_in_it_named(judging: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "judged.csv"
    file.write_text(
        "query,document,grade\nthing1,d1,4\nthing1,gone,1\nthing2,d2,1\nthing2,d2,0\nthing3,d3,0\n"
    )
    code, out, err = judging("judgements", "import", file, "-c", "t")
    assert (code, out) == (0, "t: 2 judgements: 2 new, 0 changed, 0 as before\n")
    assert "judged.csv:3: document 'gone' is not in collection 't'" in err
    assert "contradictions: 1" in err
    assert "1 grade is kept as the nearest of 0, 1, 2 and 3" in err
    own = json.loads(judging("judgements", "-c", "t", "--json")[1])
    assert own["judgements"] == {"thing1": {"d1": 3.0}, "thing3": {"d3": 0.0}}


def test_a_file_of_which_nothing_can_be_kept_is_refused(judging: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "judged.csv"
    file.write_text("query,document,grade\nthing1,gone,1\nthing2,lost,2\n")
    for more in ((), ("--json",)):
        code, out, err = judging("judgements", "import", file, "-c", "t", *more)
        assert (code, out) == (1, "")
        assert "no judgement was kept, since every row is left out" in err
        assert "judged.csv:2: document 'gone' is not in collection 't'" in err
        assert "look them up with: dsearch search TEXT -c t --json" in err


def test_queries_to_judge_are_named(judging: Terminal) -> None:
    code, out, err = judging("judgements", "next", "-c", "t", "-k", "3")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "differ most on these; judge one with: dsearch judge QUERY ID -c t" in err
    suggested = json.loads(judging("judgements", "next", "-c", "t", "--json")[1])
    assert suggested["against"] == "v0 by meaning alone"
