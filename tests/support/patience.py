"""How long a test waits for what must come: it guards against waiting for ever, and measures nothing."""

from __future__ import annotations

LATEST_S = 240.0  # what takes a second on an idle machine may take a minute beside other tests
