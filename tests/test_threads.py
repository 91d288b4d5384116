"""One thread budget for every native library, in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import faiss
import pytest
import torch

from dsearch import threads
from dsearch.errors import InvalidRequest
from dsearch.threads import available_cores, let_waiting_threads_sleep, set_threads

REPORT = """
import json, sys
from dsearch.threads import set_threads
{set}
import torch, faiss, numpy, threadpoolctl
numpy.ones((64, 64)) @ numpy.ones((64, 64))
pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
order = [name for name in sys.modules if name in ("torch", "faiss")]
print(json.dumps([pools, torch.get_num_threads(), faiss.omp_get_max_threads(), order]))
"""


def report(set_call: str) -> tuple[list[int], int, int, list[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", REPORT.format(set=set_call)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def test_every_pool_keeps_to_the_budget() -> None:
    pools, torch_threads, faiss_threads, order = report("set_threads(1)")
    assert len(pools) >= 3
    assert set(pools) == {1}
    assert (torch_threads, faiss_threads) == (1, 1)
    assert order == (["faiss", "torch"] if sys.platform == "linux" else ["torch", "faiss"])


@pytest.mark.skipif(available_cores() < 2, reason="needs two cores to tell a budget from none")
def test_without_the_budget_pools_take_every_core() -> None:
    pools, *_ = report("")
    assert max(pools) > 1


def test_commands_have_waiting_threads_sleep_before_numpy_is_loaded() -> None:
    """Libraries read this when they are loaded, and some commands load them before they know the budget."""
    code = """
import os, sys

class Noting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"), os.environ.get("OMP_WAIT_POLICY"))

sys.meta_path.insert(0, Noting())
from dsearch.cli import main
sys.argv = ["dsearch", "config"]
try:
    main()
finally:
    import numpy
"""
    unset = {"OPENBLAS_THREAD_TIMEOUT", "OMP_WAIT_POLICY"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert [line for line in done.stdout.splitlines() if "PASSIVE" in line or "None" in line] == ["4 PASSIVE"]


def test_a_budget_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="threads=0; use an integer of at least 1"):
        set_threads(0)


def test_a_policy_of_waiting_that_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    let_waiting_threads_sleep()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["OPENBLAS_THREAD_TIMEOUT"]) == ("ACTIVE", "4")


def test_a_budget_reaches_every_library_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tokenizers do not start threads of their own unless the user wants it."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "9")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    before, of_torch, of_faiss = threads.thread_budget(), torch.get_num_threads(), faiss.omp_get_max_threads()
    try:
        assert set_threads(2) == threads.thread_budget() == 2
        assert (torch.get_num_threads(), faiss.omp_get_max_threads()) == (2, 2)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")
        assert [os.environ[name] for name in names] == ["2", "2", "2", "true"]
        assert set_threads() == available_cores() == threads.thread_budget()
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
        set_threads(1)
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    finally:
        set_threads(before)
        torch.set_num_threads(of_torch)
        faiss.omp_set_num_threads(of_faiss)


def test_without_a_budget_all_cores_of_this_process_are_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_set", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert threads.thread_budget() == available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1
