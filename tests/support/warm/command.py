"""A warm process for a shell: `python -IS command.py FILE …` is `python FILE …`. Not a test."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from processes import VARIABLE, WarmProcess

process = WarmProcess(os.environ[VARIABLE], [sys.executable, *sys.argv[1:]])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: process.send_signal(number))
# A handler runs between two waits; it must not wait for the lock that a wait holds.
while (status := process.poll()) is None:
    signal.sigtimedwait([], 0.005)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
