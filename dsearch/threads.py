"""One thread budget for torch, OpenMP, FAISS and the BLAS libraries that come with them.

torch and faiss each bring an OpenMP runtime of their own, numpy and faiss a BLAS, and each of these uses
every core. Without a common budget they oversubscribe the machine. Outside Linux torch is always loaded
first: the other order has crashed on some platforms. On Linux it is loaded when something needs it.
"""

from __future__ import annotations

import os
import sys

from dsearch.errors import InvalidRequest

# Read by the native libraries when they are loaded; afterwards only their own calls have an effect.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# Waiting threads sleep: spinning ones take the cores from whoever else has work on this machine. OpenBLAS has
# its workers spin for 2^26 cycles after each product, a hundredth of a second of every core; 2^4 is least.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}

_set: int | None = None


def let_waiting_threads_sleep() -> None:
    """Tell native libraries that are loaded from now on; what the environment says already is left."""
    for variable, value in _WAITING.items():
        os.environ.setdefault(variable, value)


def set_threads(threads: int | None = None) -> int:
    """Let every native library in this process use at most `threads` threads; returns the number.

    None takes as many as this process may use cores. Loads faiss; torch, if it is loaded later, reads the
    variables of the environment that are set here.

    Raises:
        InvalidRequest: below 1.
    """
    global _set
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise InvalidRequest(f"threads={threads}; use an integer of at least 1")
    for variable in _VARIABLES:
        os.environ[variable] = str(threads)
    let_waiting_threads_sleep()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    load_torch_first()
    import faiss
    import threadpoolctl

    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    threadpoolctl.threadpool_limits(limits=threads)  # what was loaded before the variables were set
    _set = threads
    return threads


def load_torch_first() -> None:
    """Import torch before faiss, where the order matters."""
    if sys.platform != "linux":
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]


def thread_budget() -> int:
    """Thread budget for libraries that are configured at their start, such as OpenVINO.

    Before `set_threads` is called: every core, the default of the native libraries.
    """
    return available_cores() if _set is None else _set


def available_cores() -> int:
    """Cores that this process may run on; inside a container often fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
