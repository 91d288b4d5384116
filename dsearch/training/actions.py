"""What the actions of feedback mean to training: `ACTIONS`, by their Search UBI names.

A click says that a document looked worth a look from where it stood; what follows a click says more of the
same. A thumb says what somebody thinks, wherever the document stood: it needs no correction for its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes:
        grade: how relevant the document is taken to be; 0: not at all.
        explicit: whether somebody said so, rather than only acting so.
        meaning: in words.
    """

    grade: float
    explicit: bool
    meaning: str


ACTIONS: MappingProxyType[str, Action] = MappingProxyType(
    {
        "click": Action(1.0, False, "opened from the page of hits"),
        "watch": Action(1.0, False, "played or read for a while"),
        "add_to_cart": Action(2.0, False, "put aside to be bought or read"),
        "purchase": Action(3.0, False, "bought, cited or downloaded"),
        "thumbs_up": Action(2.0, True, "called relevant"),
        "thumbs_down": Action(0.0, True, "called not relevant"),
    }
)
