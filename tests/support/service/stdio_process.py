"""An agent's tools on stdin and stdout, in a process of its own. Not a test.

python stdio_process.py HOME [--write]
"""

from __future__ import annotations

import sys

import torch
from support.service.service_fakes import WordEncoder

from dsearch.engine import SearchEngine
from dsearch.service.mcp.transports import run_stdio


def main() -> None:
    torch.set_num_threads(1)
    writes = "--write" in sys.argv
    with SearchEngine(sys.argv[1], readonly=not writes, encoder=WordEncoder) as engine:
        run_stdio(engine, writes=writes)


if __name__ == "__main__":
    main()
