"""The measuring scripts run: politely without a GPU, and small on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from support.paths import SCRIPTS
from support.warm.processes import run_warm


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "bench" / script), *arguments]
    return run_warm(command, timeout=300)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so it would be measured")
@pytest.mark.parametrize(
    ("script", "arguments", "code"),
    [
        ("gpu.py", [], 0),
        pytest.param("gpu.py", ["--device", "cuda"], 1, marks=pytest.mark.slow),
        pytest.param("attention.py", ["--device", "cuda"], 1, marks=pytest.mark.slow),
    ],
)
def test_without_a_gpu_they_say_so(script, arguments, code):
    done = run(script, *arguments)
    assert done.returncode == code
    assert "no CUDA GPU that torch can see" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(tmp_path):
    done = run(
        "gpu.py",
        *["--device", "cpu", "--documents", "600", "--batch", "3", "--dim", "32", "--repeats", "1"],
        *["--only", "search", "attention", "training", "--json", str(tmp_path / "gpu.json")],
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["environment"]["product_tflops_per_s"]["float32"] > 0
    names = ("exact search", "torch: product, top k", "faiss: knn")
    searches = [f"{batch} × {documents}" for documents in (600, 60) for batch in (3, 1)]
    assert [line["name"] for line in report["lines"]] == [
        *[f"{name}, {of}" for of in searches for name in names],
        "attention",
        "attention + backward",
        "attention written out",
        "attention written out + backward",
        "attention + backward to the keys",
        "head, one step",
    ]
    assert all(
        set(line["times"]) == {"torch", "faiss"} for line in report["lines"][: 4 * len(names) : len(names)]
    )
    assert all(line["of_product_rate"] > 0 for line in report["lines"])
    assert all(line["of_copy_bandwidth"] > 0 for line in report["lines"])


@pytest.mark.slow
def test_the_attention_benchmark_runs(tmp_path):
    lines = ["fused + backward", "FAISS Flat top 10"]
    done = run(
        "attention.py",
        *["--documents", "600", "--batch", "3", "--dim", "32", "--repeats", "1", "--threads", "1"],
        *["--only", *lines, "--json", str(tmp_path / "attention.json")],
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "attention.json").read_text())["results"]
    assert [line["name"] for line in results] == lines
    assert all(line["seconds"] > 0 for line in results)
