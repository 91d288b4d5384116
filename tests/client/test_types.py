"""What type checkers and importers see of the clients."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import TESTS

import dsearch

PROGRAM = TESTS / "support" / "client" / "typed_program.py"


def test_a_program_of_thirty_calls_passes_a_strict_check(tmp_path: Path) -> None:
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    shutil.copy(PROGRAM, tmp_path / "program.py")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(Path(dsearch.__file__).parents[1])]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert json.loads(checked.stdout)["generalDiagnostics"] == []


def test_an_engine_of_this_process_needs_no_web_server(tmp_path: Path) -> None:
    program = """
import sys
import dsearch

engine = dsearch.open(sys.argv[1])
engine.create_collection("papers", dimension=2)
engine.upsert("papers", [{"id": "a", "text": "x"}], embeddings=[[1.0, 0.0]])
assert engine.search("papers", vector=[1.0, 0.0]).hits[0].id == "a"
assert not {"fastapi", "starlette", "httpx2", "uvicorn"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "home")], check=True)
