"""`dsearch train --scope full`: both encoders, in one process or in several that `torchrun` started."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from dsearch.cli.session import ProgressBars, say
from dsearch.cli.training.session import interruptible, run_folder
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.cli.training.options import Asked
    from dsearch.engine import Collection
    from dsearch.training import Examples, Gate, Trained
    from dsearch.training.loop.distributed import Processes

# And what they are when nobody chose them.
_NOT_ITS_OWN = {"objective": "listwise", "heads": 1, "query_side": None}


def train_full_with_progress(
    collection: Collection,
    examples: Examples,
    asked: Asked,
    gate: Gate,
    parent: str,
    processes: Processes,
) -> Trained:
    """Train both encoders, with a bar for the steps and one for the documents that are encoded at the end.

    Raises:
        InvalidRequest: an option that only heads have.
    """
    from dsearch.training import FullOptions, finetune_full

    chosen = asked.chosen()
    for name, default in _NOT_ITS_OWN.items():
        if chosen.get(name, default) != default:
            raise InvalidRequest(f"{name}={chosen[name]!r} with --scope full; it is of heads: leave it out")
    own = {key: value for key, value in chosen.items() if key not in (*_NOT_ITS_OWN, "scope")}
    options = FullOptions(**own)
    described = {"options": asdict(options), "data": examples.digest, "parent": parent}
    folder = None
    for first in (True, False):  # one makes it, the others go along
        if processes.first == first:
            folder = run_folder(collection, described, asked.run, resume=asked.resume or not first)
        processes.agree(False)  # waits for all
    assert folder is not None
    if processes.first:
        say(f"metrics and checkpoints: {folder.path}")
    with interruptible() as cancelled, ProgressBars("steps") as on_progress:
        return finetune_full(
            collection,
            examples,
            options,
            gate=gate,
            start=collection.head(parent),
            processes=processes,
            on_headroom=(lambda room: say(room.to_text())) if processes.first else None,
            on_progress=on_progress if processes.first else None,
            cancelled=cancelled,
            run=folder,
        )
