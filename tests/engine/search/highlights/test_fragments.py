"""Pieces of a text around the terms of a query: which ones, where they are cut, and their spans."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from dsearch.engine.search.highlights import FRAGMENT_CHARACTERS, FRAGMENTS, fragments
from dsearch.types import Highlight

WORDS = " ".join(f"w{number:03}" for number in range(400))  # five characters each


def pieces(text: str, pattern: str) -> list[Highlight]:
    return fragments(text, [match.span() for match in re.finditer(pattern, text)])


def test_a_short_text_is_its_own_piece() -> None:
    assert pieces("an apple a day", "apple|day") == [
        Highlight("text", 0, "an apple a day", [(3, 8), (11, 14)], "words")
    ]
    assert pieces("an apple a day", "pear") == []


def test_a_piece_begins_and_ends_at_words_some_forty_characters_before_the_term() -> None:
    (piece,) = pieces(WORDS, "w100")
    start = WORDS.index("w100")
    assert (piece.start, piece.text[:4]) == (start - 35, "w093")  # the first whole word
    assert piece.text == WORDS[piece.start : piece.start + len(piece.text)]
    assert len(piece.text) == FRAGMENT_CHARACTERS - 1  # without the blank behind
    assert piece.spans == [(start, start + 4)]


def test_without_a_blank_nearby_it_is_cut_within_a_word() -> None:
    text = "x" * 500 + "apple" + "y" * 500
    (piece,) = pieces(text, "apple")
    assert (piece.start, len(piece.text)) == (460, FRAGMENT_CHARACTERS)


def test_pieces_with_more_different_terms_come_first_and_all_stand_in_order() -> None:
    """The three places of five with most terms, as they follow in the text."""
    text = WORDS
    for at, term in (
        (0, "kiwi"),
        (300, "pear"),
        (320, "pear"),
        (900, "pear"),
        (910, "kiwi"),
        (1500, "kiwi"),
        (1510, "nuts"),
        (1520, "pear"),
    ):
        text = text[:at] + term + text[at + 4 :]
    shown = pieces(text, "kiwi|pear|nuts")
    assert len(shown) == FRAGMENTS == 3
    assert [
        piece.start < at < piece.start + FRAGMENT_CHARACTERS
        for piece, at in zip(shown, (2, 900, 1510), strict=True)
    ] == [True] * 3
    assert [len(piece.spans) for piece in shown] == [1, 2, 3]
    for before, after in pairwise(shown):
        assert before.start + len(before.text) <= after.start
    for piece in shown:
        for start, end in piece.spans:
            assert text[start:end] in ("kiwi", "pear", "nuts")
            assert piece.start <= start < end <= piece.start + len(piece.text)


def test_a_term_in_capitals_is_no_other_term() -> None:
    text = (
        "Pear pear PEAR ".ljust(600, "-")
        + "pear kiwi".ljust(600, "-")
        + "nuts kiwi pear".ljust(600, "-")
        + "kiwi nuts"
    )
    shown = pieces(text, "(?i)pear|kiwi|nuts")
    assert len(shown) == 3
    assert min(piece.start for piece in shown) > 500  # three times the same term is one


@pytest.mark.parametrize(("length", "shown"), [(FRAGMENT_CHARACTERS, 1), (FRAGMENT_CHARACTERS + 1, 0)])
def test_a_term_longer_than_a_piece_is_not_shown(length: int, shown: int) -> None:
    assert len(fragments("x" * 1000, [(300, 300 + length)])) == shown


def test_pieces_that_touch_are_both_shown() -> None:
    """Without blanks a piece begins forty characters before its term; the second where the first ends."""
    first, second = fragments("x" * 1000, [(100, 105), (300, 305)])
    assert (first.start, first.start + len(first.text)) == (60, 260)
    assert (second.start, second.spans) == (260, [(300, 305)])
