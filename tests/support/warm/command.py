"""A warm process for a shell: `python -IS command.py FILE …` is `python FILE …`. Not a test."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from processes import VARIABLE, WarmProcess

# Blocked and asked for: a handler could run inside a wait, and need the lock that the wait holds.
passed_on = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
process = WarmProcess(os.environ[VARIABLE], [sys.executable, *sys.argv[1:]])
while (status := process.poll()) is None:
    received = signal.sigtimedwait(passed_on, 0.005)
    if received is not None:
        process.send_signal(received.si_signo)
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
