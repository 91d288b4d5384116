"""Work in a process of its own: what comes back, how it ends, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import process_targets as targets
from support.patience import LATEST_S

from dsearch import processes
from dsearch.errors import Cancelled, InvalidRequest, ProcessDied
from dsearch.processes import run_spawned
from dsearch.types import Progress


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start as for users: new interpreters, which import torch and FAISS for 1.8 s of CPU."""
    monkeypatch.setattr(processes, "subprocess", subprocess)


def test_the_result_and_the_progress_come_back(tmp_path: Path) -> None:
    seen: list[Progress] = []
    made = run_spawned(targets.count, 3, tmp_path, on_progress=seen.append)
    assert made == targets.Made(tmp_path, [0, 1, 2])
    assert [step.done for step in seen] == [1, 2, 3]


@pytest.mark.usefixtures("cold")
def test_it_is_a_new_interpreter_with_the_thread_budget_set_before_the_target_is_imported() -> None:
    there = run_spawned(targets.surroundings, threads=1)
    assert there["pid"] != os.getpid()
    before = [] if sys.platform == "linux" else ["torch"]  # see dsearch/threads.py
    assert there["order"] == [*before, "faiss", "support.process_targets"]
    assert there["pools"] == [1]
    assert not there["main"]  # a fork would have this process's modules, a multiprocessing.Process its main


def test_an_error_of_ours_is_raised_here() -> None:
    with pytest.raises(InvalidRequest, match="limit=0; use 1 to 1000"):
        run_spawned(targets.refuse)


def test_another_exception_is_raised_with_its_traceback() -> None:
    with pytest.raises(KeyError, match="no such thing") as caught:
        run_spawned(targets.fail)
    assert "process_targets.py" in caught.value.__notes__[0]
    with pytest.raises(ProcessDied, match="Odd: this and that"):
        run_spawned(targets.fail_oddly)


def test_a_death_is_reported() -> None:
    with pytest.raises(ProcessDied, match=r"kill_itself was killed by SIGKILL; often .* memory is short"):
        run_spawned(targets.kill_itself)
    with pytest.raises(ProcessDied, match="leave ended with status 7 and no result"):
        run_spawned(targets.leave)


@pytest.mark.usefixtures("cold")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs RLIMIT_AS and /proc")
def test_memory_is_limited() -> None:
    assert run_spawned(targets.take_memory, 10, memory_bytes=2**27) == 10 * 2**20
    for greedy in (targets.take_memory, targets.take_tensor):
        with pytest.raises(ProcessDied, match="out of memory"):
            run_spawned(greedy, 400, memory_bytes=2**27)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z")  # of another's parent


def gone_soon(pid: int) -> bool:
    until = time.monotonic() + LATEST_S
    while time.monotonic() < until:
        if gone(pid):
            return True
        time.sleep(0.05)
    return False


def test_cancelling_lets_it_clean_up(tmp_path: Path) -> None:
    with pytest.raises(Cancelled, match="wait was cancelled"):
        run_spawned(targets.wait, tmp_path, cancelled=(tmp_path / "pid").exists)
    assert (tmp_path / "cleaned").exists()
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("cleaning", [False, True])
def test_a_signal_at_its_exit_prints_no_traceback(capfd: pytest.CaptureFixture[str], cleaning: bool) -> None:
    if cleaning:
        with pytest.raises(ProcessDied, match="status 143"):
            run_spawned(targets.terminate_at_the_end, True)
    else:
        assert run_spawned(targets.terminate_at_the_end, False) is None
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("cold")
def test_what_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GRACE_S", 0.3)
    with pytest.raises(Cancelled):
        run_spawned(targets.wait, tmp_path, True, cancelled=(tmp_path / "pid").exists)
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("variable", "asked", "given"),
    [
        ("3", None, 3),
        ("3", 1, 1),
        ("4,2", None, 4),
        ("0", None, None),
        ("many", None, None),
        ("", None, None),
    ],
)
def test_its_threads_are_those_that_were_asked_for_or_this_processs_own(
    monkeypatch: pytest.MonkeyPatch, variable: str, asked: int | None, given: int | None
) -> None:
    started: list[int | None] = []

    def start(payload: bytes, memory_bytes: int | None, threads: int | None) -> None:
        started.append(threads)
        raise InterruptedError

    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(processes, "_started", start)
    with pytest.raises(InterruptedError):
        run_spawned(targets.refuse, threads=asked)
    assert started == [given]


def test_an_error_of_the_listener_ends_the_process(tmp_path: Path) -> None:
    def listener(step: Progress) -> None:
        raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        run_spawned(targets.wait, tmp_path, on_progress=listener)
    assert (tmp_path / "cleaned").exists()
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.crash
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = (
        f"import sys, pathlib; sys.path[:] = {sys.path!r}; import support.process_targets as targets; "
        f"targets.wait_below(print, pathlib.Path({str(tmp_path)!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    note = tmp_path / "pid"
    while not (note.exists() and note.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    child = int(note.read_text())
    assert not gone(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone_soon(child)


def test_what_another_process_cannot_import_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="use a function of a module"):
        run_spawned(lambda report: None)
    with pytest.raises(InvalidRequest, match="memory_bytes=0; use an integer of at least 1"):
        run_spawned(targets.count, 1, Path(), memory_bytes=0)
    with pytest.raises(InvalidRequest, match="threads=0"):
        run_spawned(targets.count, 1, Path(), threads=0)


def test_an_interrupt_is_left_to_the_process_that_started_it() -> None:
    """Ctrl-C reaches a whole group of processes; the parent ends its children by itself."""
    assert run_spawned(targets.interrupt_itself) == "still here"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs RLIMIT_AS and /proc")
@pytest.mark.parametrize("hard", [-1, 1 << 20])
def test_a_limit_of_memory_is_not_above_the_systems_own(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    resource = pytest.importorskip("resource")
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    processes.limit_memory(1 << 40)
    [(soft, kept)] = limits
    assert kept == hard
    assert soft > 1 << 40 if hard == resource.RLIM_INFINITY else soft == hard
