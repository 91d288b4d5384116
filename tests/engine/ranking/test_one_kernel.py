"""Search, layer, attention over all, gate and shards rank by the same lines.

A copy of the package in which one line of a formula is another ranks otherwise in all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dsearch

WAYS = ("search", "layer", "all", "gate", "shards")
HERE = Path(__file__).parents[2]


def scores(package: Path, folder: Path) -> dict[str, list[float]]:
    """What the program prints with the package in this folder."""
    path = os.pathsep.join([str(package), str(HERE)])
    command = [sys.executable, "-m", "support.engine.ranking_program", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return scores(Path(dsearch.__file__).parents[1], tmp_path_factory.mktemp("as it is"))


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_give_the_same_scores(expected: dict[str, list[float]], way: str) -> None:
    assert expected[way] == pytest.approx(expected["search"], abs=1e-5)


@pytest.mark.parametrize(
    ("module", "line", "other"),
    [
        ("hops.py", "return queries + strength * pooled", "return queries - strength * pooled"),
        ("kernel.py", "raw = raw + part[..., None, :]", "raw = raw - part[..., None, :]"),
    ],
    ids=["hop", "memory"],
)
def test_another_line_ranks_otherwise_everywhere(
    expected: dict[str, list[float]], tmp_path: Path, module: str, line: str, other: str
) -> None:
    package = tmp_path / "package"
    source = Path(dsearch.__file__).parent
    shutil.copytree(source, package / "dsearch", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "index").mkdir()
    shutil.copy(source.parent / "index" / "manifest.schema.json", package / "index")
    changed = package / "dsearch" / "attention" / "retrieval" / module
    before = changed.read_text("utf-8")
    assert before.count(line) == 1
    changed.write_text(before.replace(line, other), "utf-8")
    found = scores(package, tmp_path)
    same = [way for way in WAYS if found[way] == pytest.approx(expected[way], abs=1e-5)]
    assert same == []
