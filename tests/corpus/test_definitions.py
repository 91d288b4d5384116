"""Passages of source code begin where functions and classes do."""

from __future__ import annotations

import calendar
import inspect
from collections.abc import Sequence

import pytest

from dsearch.corpus.chunk import cut
from dsearch.corpus.definitions import definition_starts

PYTHON = '''"""A module."""

import os


# about the first
@decorated
def first(a):
    """Say def in a string:

def no():
    """
    return a


class Second:
    def method(self):
        return "class X:"

    async def other(self): ...
'''
OTHERS = {
    "javascript": (
        "const a = 1;\n\n// adds\nexport async function add(a) {\n}\n\nclass Box {\n}\n",
        ["// adds", "class"],
    ),
    "typescript": ("import x;\n\ninterface A {\n}\n\nexport default class B {\n}\n", ["interface", "export"]),
    "rust": (
        "use a;\n\n/// Doc.\n#[test]\npub(crate) fn one() {\n}\n\nimpl<T> Box<T> {\n}\n",
        ["/// Doc.", "impl"],
    ),
    "go": ("package a\n\n// Says.\nfunc (b *Box) Say() {\n}\n", ["// Says."]),
    "c": (
        "#include <a.h>\n\nstatic int add(int a,\n               int b)\n{\n  if (a) {\n  }\n  call(a);\n}\n",
        ["static"],
    ),
    "java": (
        "package a;\n\n/** Says. */\npublic class A {\n    private static class B {\n    }\n}\n",
        ["/**", "private"],
    ),
    "ruby": ("require 'a'\n\nmodule A\n  def self.b(c)\n  end\nend\n", ["module", "def"]),
    "python": ("print 'of Python 2'\n\ndef old():\n    pass\n", ["def"]),
}


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_python_is_parsed() -> None:
    starts = definition_starts(PYTHON, "python")
    begun = [PYTHON[start:].lstrip().split("\n")[0] for start in starts]
    assert begun == ["# about the first", "class Second:", "def method(self):", "async def other(self): ..."]
    assert definition_starts("", "python") == []
    assert definition_starts("x = '\\d'\fy\ndef f(): ...\n", "python")


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages_are_read_by_their_keywords(language: str) -> None:
    text, begun = OTHERS[language]
    starts = definition_starts(text, language)
    assert len(starts) == len(begun)
    for start, beginning in zip(starts, begun, strict=True):
        assert text[start:].lstrip().startswith(beginning)


def test_passages_of_a_module_begin_with_definitions() -> None:
    text = inspect.getsource(calendar)
    starts = definition_starts(text, "python")

    def begun(passages: list[tuple[int, int]]) -> int:
        return sum(any(not text[at:start].strip() for at in starts if at <= start) for start, _ in passages)

    passages, plain = cut(text, 200, 25, words, starts), cut(text, 200, 25, words)
    assert begun(passages) >= 2 / 3 * (len(passages) - 1)
    assert begun(plain) <= 1 / 3 * (len(plain) - 1)
    covered = {at for start, end in passages for at in range(start, end)}
    assert all(text[at].isspace() for at in set(range(len(text))) - covered)
    assert max(words([text[start:end] for start, end in passages])) <= 200


def test_a_definition_that_is_far_leaves_the_cut_as_it_was() -> None:
    text = "def near(): 1\n" + "word " * 500
    assert cut(text, 100, 0, words, [0]) == cut(text, 100, 0, words)


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_python_end_where_python_ends_them(mark: str, end: str) -> None:
    text = end.join([f"x = 'a{mark}b'  # {mark}", "", "def one():", "    pass", "", "def two():", "    pass"])
    assert [text[start:][:7] for start in definition_starts(text, "python")] == ["def one", "def two"]


@pytest.mark.parametrize("language", ["javascript", "python", "shell"])
def test_a_call_at_the_margin_begins_nothing_but_in_the_family_of_c(language: str) -> None:
    text = "start(one,\n      two\n)\n\nrun (three\n"
    assert definition_starts(text, language) == []
    assert definition_starts(text, "c") == [0, text.index("run")]
