"""Import bm25s without JAX.

Where JAX is installed, bm25s runs it once while it is imported, which starts it: on a machine with a GPU it
then holds three quarters of the GPU's memory for as long as the process lives, and dsearch has no use for it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def import_bm25s(submodule: str = "") -> ModuleType:
    """Return bm25s, or a submodule of it; while it is imported for the first time, JAX is as if missing.

    A search needs neither: bm25s brings scipy, so it is imported where an index is built.
    """
    name = "bm25s" + submodule
    if name in sys.modules:
        return sys.modules[name]
    hidden = {each: sys.modules.get(each) for each in ("jax", "jax.lax")}
    try:
        for each in hidden:
            sys.modules[each] = None  # type: ignore[assignment]  # Python's own way to refuse an import
        return importlib.import_module(name)
    finally:
        for each, module in hidden.items():
            if module is None:
                del sys.modules[each]
            else:
                sys.modules[each] = module
