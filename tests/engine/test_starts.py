"""A search in a new process imports neither torch nor sentence-transformers, which take longer than it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

HEAVY = {"torch", "sentence_transformers", "transformers", "fastapi", "dsearch.training"}

CALL = """
import json, sys
import numpy as np
import dsearch
from dsearch.encoder import EncoderIdentity, TextTokens

class Encoder:  # an exported one needs no torch either; tests/real/test_starts.py has it
    identity = EncoderIdentity("hashing", "", "0" * 64, "sum", 256, "test", "float32", 32)

    def encode_queries(self, texts):
        return np.full((len(texts), 32), 32**-0.5, np.float32)

    encode_documents = encode_queries

    def encode_tokens(self, texts, side="document"):
        tokens = [TextTokens(np.eye(2, 32, dtype=np.float32), np.array([[0, 6], [11, 16]])) for _ in texts]
        return self.encode_queries(texts), tokens

home, collection, call, arguments, options = *sys.argv[1:4], *map(json.loads, sys.argv[4:])
with dsearch.open(home, readonly=True, encoder=Encoder) as engine:
    result = getattr(engine, call)(collection, *arguments, **options)
print(json.dumps([len(getattr(result, "hits", [])), sorted(sys.modules)]))
"""

COMMAND = """
import json, sys
from dsearch.cli import main

sys.argv = ["dsearch", "search", "cheese bread", "--home", *sys.argv[1:]]
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
def home(engine: SearchEngine, collection: Collection, documents: list[Document]) -> Path:
    torch.manual_seed(0)
    head = Head(32, heads=2, rank=4)
    collection.add_model(changed(head), {})
    staged = engine.create("staged")
    staged.ingest(documents, second_stage=True)
    head = Head(32, heads=2, rank=4)
    head.open_excitation(3)
    head.second_stage = SecondStage(staged.snapshot.token_dims or 0)
    at = staged.snapshot.visible()[:3]
    every = np.arange(3)
    rows, embeddings = staged.snapshot.rows(at), staged.snapshot.embeddings(at[None])[0]
    head = changed(head).remembering(QueryMemory(embeddings, embeddings, rows, every, every, np.ones(3)))
    staged.promote(staged.add_model(head, {}))
    return engine.home.path


def changed(head: Head) -> Head:
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return head


@pytest.mark.parametrize("name", ["food", "staged"])
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
def test_a_first_search_in_python(home: Path, name: str, options: dict) -> None:
    hits, modules = last_line(CALL, str(home), name, "search", '["cheese and bread"]', json.dumps(options))
    assert hits
    assert not HEAVY & {*modules}


def test_what_matched_in_meaning_is_marked_without_torch(home: Path) -> None:
    options = json.dumps({"stages": 2, "highlight": True, "highlight_by": "meaning"})
    hits, modules = last_line(CALL, str(home), "staged", "search", '["cheese and bread"]', options)
    assert hits
    assert not HEAVY & {*modules}


@pytest.mark.parametrize("name", ["food", "staged"])
def test_a_search_by_the_command_line(home: Path, name: str) -> None:
    assert not HEAVY & {*last_line(COMMAND, str(home), "-c", name, "--mode", "keyword")}


def test_what_needs_torch_imports_it(home: Path) -> None:
    assert "torch" in last_line(CALL, str(home), "food", "attend", '[["cheese"]]', "{}")[1]
