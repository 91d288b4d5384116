"""Export of an encoder in a process of its own, at low priority, while this one goes on with torch.

The process outlives its parent: a command that ends before it leaves the export to the next one. It holds a
lock, so that of several at once one exports and the others find its result. It is a new interpreter, since
tracing a model changes state that encoding threads of this process use.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dsearch.encoder.automatic.outcome import outcome
from dsearch.encoder.exported.cache import cached_encoder, export_folder
from dsearch.encoder.exported.compiled import CompiledEncoder
from dsearch.encoder.exported.request import Exporting

_POLL_S = 0.2
_log = logging.getLogger(__name__)

# The lock comes before the imports, which take seconds and half a gigabyte in each process that waits.
_BOOTSTRAP = """\
import os, sys
sys.path[:] = {path!r}
if hasattr(os, "nice"):
    os.nice(10)
from filelock import FileLock
with FileLock({lock!r}):
    if {again!r} or not os.path.exists({record!r}):
        from dsearch.threads import set_threads
        set_threads(1)
        from dsearch.encoder.automatic.process import prepare
        prepare({name!r}, {cache!r}, {trained!r})
"""


class Preparation:
    """Exports in another process, then hands the exported encoder over.

    Args:
        request: the encoder.
        dtype: required precision, or None; as for `outcome`.
        batch_size: texts per run of the exported encoder.
        on_ready: receives the exported encoder, in a thread of this object.
        on_problem: receives the reason why there is none.
    """

    def __init__(
        self,
        request: Exporting,
        dtype: str | None,
        batch_size: int,
        on_ready: Callable[[CompiledEncoder], None],
        on_problem: Callable[[str], None],
    ):
        self._request, self._dtype, self._batch_size = request, dtype, batch_size
        self._on_ready, self._on_problem = on_ready, on_problem
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="encoder-preparation", daemon=True)

    def start(self, *, again: bool = False) -> None:
        """Start it.

        Args:
            again: export even if there is one, which is damaged.

        Raises:
            OSError: the cache cannot be written, or no process started.
        """
        cache = self._request.cache
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError(f"{cache} cannot be written")
        folder = export_folder(self._request)
        code = _BOOTSTRAP.format(
            path=[str(Path(entry or ".").absolute()) for entry in sys.path],
            lock=str(cache / f"{folder.name}.preparing"),
            record=str(folder / "export.json"),
            again=again,
            name=self._request.name,
            cache=str(cache),
            trained=self._request.trained,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the command, not this
        )
        atexit.register(self._end)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; True if it came within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _end(self) -> None:
        """Let a takeover that has begun finish: native code must not run while the interpreter ends."""
        self._ending.set()
        self._thread.join()

    def _follow(self) -> None:
        while self._process.poll() is None:
            if self._ending.wait(_POLL_S):
                return
        try:
            result = self._result()
        except Exception as error:  # libraries fail in many ways, and torch does their work
            result = f"{type(error).__name__}: {error}"
        atexit.unregister(self._end)
        if isinstance(result, str):
            self._on_problem(result)
        else:
            self._on_ready(result)

    def _result(self) -> CompiledEncoder | str:
        assert self._process.stdout is not None  # a pipe
        with self._process.stdout as pipe:
            said = pipe.read()
        cached = outcome(self._request, self._dtype)
        if cached.dtype is None:
            if cached.problem is not None:
                return cached.problem
            if said.strip():
                return str(json.loads(said.splitlines()[-1])["problem"])  # libraries print, too
            return f"the process that exports ended with status {self._process.returncode}"
        encoder = cached_encoder(self._request, cached.dtype, batch_size=self._batch_size)
        if encoder is None:
            return "the export was damaged at once"
        encoder.encode_queries(["the first call prepares what later ones use"])
        return encoder
