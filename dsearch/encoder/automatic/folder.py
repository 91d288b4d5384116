"""Folder of exported models: one a machine and user, so that a model is exported once for all homes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CACHE_NAME = ".encoders"  # in a home, where the user has no folder for caches


def machine_cache() -> Path:
    """Return the folder by the custom of the system; it need not exist.

    Raises:
        RuntimeError: the user has no home folder.
    """
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "dsearch" / "encoders"


def encoder_cache(home: Path, chosen: Path | None = None) -> Path:
    """Return the folder to use: the one of the settings, that of the machine, or one in the home.

    It need not exist, and none is made.

    Args:
        home: folder of collections.
        chosen: the setting `cache`; None where it is unset.
    """
    if chosen is not None:
        return chosen
    try:
        folder = machine_cache()
        present = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    except (OSError, RuntimeError, StopIteration):  # a service user without a home folder
        return home / CACHE_NAME
    return folder if present == folder or os.access(present, os.W_OK) else home / CACHE_NAME
