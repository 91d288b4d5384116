"""Passages: nothing is lost, none is too long, and they are about equal."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.corpus.chunk import _first_of_next, cut


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
