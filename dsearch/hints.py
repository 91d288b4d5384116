"""`Command`: a `dsearch` command that a message tells its reader to run.

The library names a command and its arguments. The command line, when it shows the message, adds the `--home`
that it was started with; over HTTP and in Python the command stands without one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command that takes `--home`.

    Attributes:
        name: the command, for example "refresh" or "feedback clear".
        arguments: the words behind it; words in capitals stand for what the reader has to choose.
    """

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.line()

    def line(self, home: str | None = None) -> str:
        """The command as it is typed.

        Args:
            home: folder of the collections, named right behind the command; left out when None.
        """
        words = self.arguments if home is None else ("--home", home, *self.arguments)
        return " ".join(["dsearch", self.name, *map(shlex.quote, words)])
