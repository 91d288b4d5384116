"""A training of values by command line answers predictions, and no command makes it answer searches."""

from __future__ import annotations

import json
from pathlib import Path

from support.cli.terminal import Terminal


def test_values_by_command_line_answer_predictions_alone(dsearch: Terminal, tmp_path: Path) -> None:
    corpus = tmp_path / "fruit.jsonl"
    lines = [{"id": f"d{i}", "text": f"fruit number{i} kind{i % 2}", "price": i % 2} for i in range(24)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert dsearch("index", corpus, "-c", "fruit")[0] == 0
    values = ("train", "-c", "fruit", "--objective", "value", "--field", "price", "--epochs", "1", "--accept")
    code, out, err = dsearch(*values)
    assert code == 0, err
    assert "v1 answers predictions now; back with: dsearch rollback --purpose predict -c fruit" in out
    assert dsearch("search", "fruit", "-c", "fruit", "--json")[1].count('"model": "v0"') == 1
    code, _, err = dsearch("promote", "v1", "-c", "fruit", "--purpose", "search")
    assert code != 0
    assert "v1 learned to predict a field" in err
    out = dsearch("models", "-c", "fruit")[1]
    assert "* v1   predicts 'price', from v0, 24 documents" in out
    assert "predicted, the latest first: v1, as search" in out
    assert dsearch("rollback", "-c", "fruit", "--purpose", "predict")[1] == (
        "fruit: v0 answers predictions now, in place of v1\n"
    )
    assert dsearch("promote", "v1", "-c", "fruit")[1] == "fruit: v1 answers predictions now\n"
