"""Problems of a source, collected so that one bad line does not reject the rest of the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from dsearch.errors import InvalidSource


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A skipped record: the file, its first line (None: the whole file), and the reason."""

    source: str
    line: int | None
    message: str

    def __str__(self) -> str:
        """`file:line: message`, which editors and terminals can follow."""
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.message}"


class Problems:
    """Count all problems and keep the first few; if strict, raise at the first one instead.

    Attributes:
        count: number of records or files skipped.
        first: first `keep` problems, in order.
        sources: files and folders with a problem.
        passed_over: number of files in folders without a reader, by suffix; not problems.
        remarks: what a reader should know of sources that were read all the same.
    """

    def __init__(
        self,
        strict: bool = False,
        keep: int = 100,
        on_problem: Callable[[SourceProblem], None] | None = None,
    ) -> None:
        self.strict = strict
        self.keep = keep
        self.on_problem = on_problem
        self.count = 0
        self.first: list[SourceProblem] = []
        self.sources: set[str] = set()
        self.passed_over: Counter[str] = Counter()
        self.remarks: list[SourceProblem] = []

    def remark(self, source: str, message: str) -> None:
        """Record a remark on a source that is read all the same; the first `keep` are kept."""
        if len(self.remarks) < self.keep:
            self.remarks.append(SourceProblem(source, None, message))

    def add(self, source: str, line: int | None, message: str) -> None:
        """Record a problem and pass it to `on_problem`.

        Raises:
            InvalidSource: when strict.
        """
        problem = SourceProblem(source, line, message)
        if self.strict:
            raise InvalidSource(str(problem))
        self.count += 1
        self.sources.add(source)
        if len(self.first) < self.keep:
            self.first.append(problem)
        if self.on_problem is not None:
            self.on_problem(problem)
