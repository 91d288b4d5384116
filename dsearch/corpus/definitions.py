"""Starts of functions and classes in source code, where passages of it are cut.

Python's own parser finds them in Python; in other languages they are lines that open a definition by a
keyword, or, in the family of C, by a head with brackets at the margin. Comments and decorators directly
above belong to a definition.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

_WORDS = (
    "export|default|public|private|protected|internal|static|async|abstract|final|sealed|override|open|inline|"
    r"suspend|data|unsafe|extern|pub(?:\([^)]*\))?|declare|partial|local|pure|recursive"
)
_KEYWORDS = (
    "def|defp|defmodule|class|function|func|fun|fn|interface|struct|enum|impl|trait|protocol|extension|module|"
    "namespace|object|record|sub|procedure|type|instance"
)
_DEFINITION = re.compile(rf"^[ \t]{{0,8}}(?:(?:{_WORDS})\s+)*(?:{_KEYWORDS})\b\s*[\w(<*\[]")
_HEAD = re.compile(r"^[A-Za-z_][\w\s*&:<>,~\[\]]*\([^;]*$")
_ABOVE = re.compile(r"^[ \t]*(?:@|#(?!include|define|if|endif|else)|//|/\*|\*|--|\"\"\"|%|;;)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")  # Python's; str.splitlines ends more
_MARGIN = frozenset({"c", "c++", "c#", "java", "dart", "php"})


def definition_starts(text: str, language: str) -> list[int]:
    """Return the offsets of lines at which a function or a class begins, ascending.

    Args:
        text: source code.
        language: name of `dsearch.corpus.files.CODE`.
    """
    if language == "python":
        try:
            return sorted(set(_python(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # of another version, or cut: as the others
    lines = text.splitlines(keepends=True)
    offsets = _offsets(lines)
    starts: list[int] = []
    for number, line in enumerate(lines):
        if _DEFINITION.match(line) or (language in _MARGIN and _HEAD.match(line.rstrip())):
            while number and _ABOVE.match(lines[number - 1]):
                number -= 1
            starts.append(offsets[number])
    return sorted(set(starts))


def _python(text: str) -> Iterator[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings that others wrote
        tree = ast.parse(text)
    lines = _LINE.findall(text)
    offsets = _offsets(lines)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            number = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            while number and lines[number - 1].lstrip().startswith("#"):
                number -= 1
            yield offsets[number]


def _offsets(lines: list[str]) -> list[int]:
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    return offsets
