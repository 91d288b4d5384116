"""Parts of models that earlier releases trained and this release does not serve.

A version with such a part stays registered and keeps its files. Its head alone would rank differently from
the trained model, so the version cannot be queried. If it was promoted, its nearest ancestor without such a
part answers instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsearch.errors import Gone
from dsearch.store import Store

OVERLAY_NAME = "overlay.safetensors"
CONSTANT = "constant"


def retired_part(record: Mapping[str, Any]) -> str | None:
    """Name the part of a model that this release does not serve; None for a model that it serves.

    Args:
        record: of the model, as it was registered.
    """
    if OVERLAY_NAME in record.get("files", {}):
        return "changed keys of single documents (--overlay)"
    if record.get("head", {}).get("fusion", CONSTANT) != CONSTANT:
        return "a keyword weight of the query (--fusion gate)"
    return None


def served_version(store: Store, version: str | None = None) -> str:
    """Return a version itself, or its nearest ancestor that this release serves; v0 is always one.

    Args:
        store: the collection's.
        version: the live one for searches when None.

    Raises:
        ModelNotFound: no such version.
    """
    model = store.model(store.live_model() if version is None else version)
    while model.parent is not None and retired_part(model.record) is not None:
        model = store.model(model.parent)  # registered for as long as its children are
    return model.version


def require_served(store: Store, version: str) -> None:
    """Return if this release serves the version.

    Raises:
        ModelNotFound: no such version.
        Gone: it has a part that this release does not serve.
    """
    part = retired_part(store.model(version).record)
    if part is not None:
        raise Gone(
            f"model {version} of collection {store.name!r} has {part}, which this release no longer serves; "
            f"ask with model {served_version(store, version)}, which it was trained from, or train anew: "
            f"dsearch train -c {store.name}"
        )


def live_problem(store: Store) -> str | None:
    """Say why the version that was promoted does not answer, and which one does; None where it answers."""
    live = store.live_model()
    part = retired_part(store.model(live).record)
    if part is None:
        return None
    answers = served_version(store, live)
    return (
        f"collection {store.name!r}: model {live} was promoted, but has {part}, which this release no longer "
        f"serves; {answers} answers in its place. To settle that: dsearch promote {answers} -c {store.name}; "
        f"or train anew: dsearch train -c {store.name}"
    )
