"""A search in a new process imports neither torch nor sentence-transformers, which take longer than it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine

HEAVY = {"torch", "sentence_transformers", "transformers", "fastapi", "dsearch.training"}

CALL = """
import json, sys
import numpy as np
import dsearch
from dsearch.encoder import EncoderIdentity

class Encoder:  # an exported one needs no torch either; tests/real/test_starts.py has it
    identity = EncoderIdentity("hashing", "", "0" * 64, "sum", 256, "test", "float32", 32)

    def encode_queries(self, texts):
        return np.full((len(texts), 32), 32**-0.5, np.float32)

    encode_documents = encode_queries

home, call, arguments, options = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
with dsearch.open(home, readonly=True, encoder=Encoder) as engine:
    result = getattr(engine, call)("food", *arguments, **options)
print(json.dumps([len(getattr(result, "hits", [])), sorted(sys.modules)]))
"""

COMMAND = """
import json, sys
from dsearch.cli import main

sys.argv = ["dsearch", "search", "cheese bread", "-c", "food", "--mode", "keyword", "--home", sys.argv[1]]
try:
    main()
except SystemExit as end:
    assert not end.code, end
print(json.dumps(sorted(sys.modules)))
"""


def last_line(code: str, *arguments: str) -> list:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def home(engine: SearchEngine, collection: Collection) -> Path:
    torch.manual_seed(0)
    head = Head(32, heads=2, rank=4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    collection.add_model(head, {})
    return engine.home.path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "v1", "hops": 2, "explain": True},
        {"filter": {"number": {"gte": 3}}, "mode": "dense", "highlight": True, "coverage": True},
        {"diversity": 0.3, "typos": True},
    ],
    ids=["hybrid", "trained", "filter", "diverse"],
)
def test_a_first_search_in_python(home: Path, options: dict) -> None:
    hits, modules = last_line(CALL, str(home), "search", '["cheese and bread"]', json.dumps(options))
    assert hits
    assert not HEAVY & {*modules}


def test_a_search_by_the_command_line(home: Path) -> None:
    assert not HEAVY & {*last_line(COMMAND, str(home))}


def test_what_needs_torch_imports_it(home: Path) -> None:
    assert "torch" in last_line(CALL, str(home), "attend", '[["cheese"]]', "{}")[1]
