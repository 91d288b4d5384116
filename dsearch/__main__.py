"""`python -m dsearch` is `dsearch`."""

from __future__ import annotations

from dsearch.cli import main

if __name__ == "__main__":
    main()
