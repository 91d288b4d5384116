"""Passages: nothing is lost, none is too long, and they are about equal."""

from __future__ import annotations

import calendar
import gc
import inspect
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.corpus.chunk import _first_of_next, cut, definition_starts


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def characters(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


def count(text: str) -> int:
    return words([text])[0]


SENTENCE = "The quick brown fox jumps over the lazy dog. "


def test_a_text_that_fits_is_one_passage():
    assert cut("one two", 2, 0, words) == [(0, 7)]
    assert cut("", 2, 0, words) == [(0, 0)]
    assert cut(" \n \n ", 2, 0, characters) == [(0, 5)]


def test_passages_end_where_sentences_do():
    text = SENTENCE * 40
    passages = cut(text, 100, 20, words)
    assert len(passages) == 5
    for start, end in passages:
        assert text[start:end].startswith("The quick")
        assert text[start:end].endswith("lazy dog.")


def test_neighbours_overlap_by_no_more_than_was_asked():
    text = SENTENCE * 60
    for overlap in (0, 10, 30):
        passages = cut(text, 100, overlap, words)
        shared = [count(text[after : max(end, after)]) for (_, end), (after, _) in pairwise(passages)]
        assert max(shared) <= overlap
        assert (min(shared) >= overlap - 9) or overlap == 0  # a sentence is the nearest seam


def long_words(number: int) -> tuple[str, list[int]]:
    """Words of which each is a piece by itself, and where each begins."""
    text = " ".join(f"word-{n:03d}-{'x' * 21}" for n in range(number))
    return text, list(range(0, len(text), 31))


@pytest.mark.parametrize("overlap", [1, 10])
def test_neighbours_share_as_many_tokens_as_they_may(overlap):
    text, _ = long_words(300)
    passages = cut(text, 100, overlap, words)
    shared = [count(text[after : max(end, after)]) for (_, end), (after, _) in pairwise(passages)]
    assert set(shared) == {overlap}


@pytest.mark.parametrize(("seam", "begins"), [(30, True), (45, True), (60, True), (29, False)])
def test_a_passage_begins_at_a_seam_that_leaves_half_of_one_before_it(seam, begins):
    text, starts = long_words(120)
    assert [start for start, _ in cut(text, 80, 0, words)] == [starts[0], starts[60]]
    passages = cut(text, 80, 0, words, [starts[seam]])
    assert (starts[seam] in [start for start, _ in passages]) == begins


def test_no_short_rest_is_left_over():
    text = " ".join(f"word{n}" for n in range(1010))
    lengths = [count(text[start:end]) for start, end in cut(text, 100, 0, words)]
    assert sum(lengths) == 1010
    assert min(lengths) > 80


def test_a_word_longer_than_a_passage_is_cut_too():
    text = "a" * 100
    passages = cut(text, 10, 2, characters)
    assert "".join(text[start:end] for start, end in passages[:1]) == "a" * (passages[0][1])
    assert all(end - start <= 10 for start, end in passages)
    assert {at for start, end in passages for at in range(start, end)} == set(range(100))


TEXTS = st.text(st.sampled_from("ab é.\n,\t;"), min_size=1, max_size=400)


@given(TEXTS, st.integers(2, 40), st.data())
def test_every_character_is_in_a_passage_and_none_is_too_long(text, size, data):
    overlap = data.draw(st.integers(0, (size - 1) // 2))
    passages = cut(text, size, overlap, characters)
    held = {at for start, end in passages for at in range(start, end)}
    assert {at for at, character in enumerate(text) if not character.isspace()} <= held
    assert all(start < next_start for (start, _), (next_start, _) in pairwise(passages))
    assert all(start < end for start, end in passages)
    if len(passages) > 1:  # white space between the pieces comes on top
        visible = [sum(not c.isspace() for c in text[start:end]) for start, end in passages]
        assert max(visible) <= size


@pytest.mark.parametrize("size", [1, 2, 7])
def test_tiny_sizes_end(size):
    assert len(cut("a b c d e f g h i j", size, 0, words)) >= 10 / size


def test_characters_of_several_tokens_are_cut_by_tokens():
    """Of what is found by characters a part may be too long."""
    text = "語" * 200
    passages = cut(text, 20, 4, lambda texts: [7 * len(part) for part in texts])
    assert all(7 * (end - start) <= 20 for start, end in passages)
    assert {at for start, end in passages for at in range(start, end)} == set(range(200))


def test_nothing_of_a_text_is_kept_when_it_was_cut():
    """A cache of lengths would grow with every text of a corpus, and keep the tokenizer that counts."""
    kept = []

    class Part(str):
        __slots__ = ("__weakref__",)

        def __getitem__(self, at):
            part = Part(super().__getitem__(at))
            kept.append(weakref.ref(part))
            return part

    def in_tokens(texts: Sequence[str]) -> list[int]:
        return [7 * len(part) for part in texts]

    cut(Part("語" * 200), 20, 4, in_tokens)
    counter = weakref.ref(in_tokens)
    del in_tokens
    gc.collect()
    assert counter() is None
    assert len(kept) > 40
    assert not any(part() for part in kept)


def test_a_passage_never_begins_where_the_one_before_did():
    """A first piece that fits into the overlap, before one as large as a passage, would be cut for ever."""
    assert _first_of_next([1, 10, 10], 0, 0, 4) == 1
    assert _first_of_next([10, 1, 3, 10], 0, 2, 4) == 1


def test_what_has_no_tokens_is_not_repeated():
    """Marks that a tokenizer drops would stand at the end of a passage and in front of the next."""
    text = " ".join([f"word{n:02d}{'x' * 24} {'-' * 30}" for n in range(160)])

    def without_marks(texts: Sequence[str]) -> list[int]:
        return [sum(word[0] != "-" for word in part.split()) for part in texts]

    passages = cut(text, 80, 0, without_marks)
    assert len(passages) > 1
    assert all(end <= start for (_, end), (start, _) in pairwise(passages))


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
