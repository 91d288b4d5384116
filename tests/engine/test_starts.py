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

home, collection, *calls = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
with dsearch.open(home, readonly=True, encoder=Encoder) as engine:
    for call, arguments, options in calls:
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


def lines(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def home(engine: SearchEngine, collection: Collection, documents: list[Document]) -> Path:
    torch.manual_seed(0)
    head = Head(32, heads=2, rank=4)
    collection.add_model(changed(head), {})
    staged = engine.create("staged")
    staged.ingest(documents, second_stage=True)
    head = Head(32, heads=2, rank=4)
    head.open_excitation(3)
    head.second_stage = SecondStage()
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


SEARCHES: dict[str, dict] = {
    "hybrid": {},
    "trained": {"model": "v1", "hops": 2, "explain": True},
    "filter": {"filter": {"number": {"gte": 3}}, "mode": "dense", "highlight": True, "coverage": True},
    "diverse": {"diversity": 0.3, "typos": True},
}
MEANING = {"stages": 2, "highlight": True, "highlight_by": "meaning"}


@pytest.mark.parametrize("name", ["food", "staged"])
def test_first_searches_in_python(home: Path, name: str) -> None:
    """One process asks all of them: whatever one of them had imported would stay."""
    searches = SEARCHES | ({"meaning": MEANING} if name == "staged" else {})
    calls = [json.dumps(["search", ["cheese and bread"], options]) for options in searches.values()]
    if name == "food":
        calls.append(json.dumps(["attend", [["cheese"]], {}]))
    answers = [json.loads(line) for line in lines(CALL, str(home), name, *calls)]
    if name == "food":  # attention needs torch, and this test would notice
        assert "torch" in answers.pop()[1]
    for search, (hits, modules) in zip(searches, answers, strict=True):
        assert hits, search
        assert not HEAVY & {*modules}, search


@pytest.mark.parametrize("name", ["food", "staged"])
def test_a_search_by_the_command_line(home: Path, name: str) -> None:
    assert not HEAVY & {*json.loads(lines(COMMAND, str(home), "-c", name, "--mode", "keyword")[-1])}
