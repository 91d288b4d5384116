"""Queries made of documents, and queries that nothing answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.corpus import inverse_cloze, sentences, title_queries
from dsearch.corpus.made_queries import (
    EVERYDAY,
    LOWER_CASE_WORDS,
    known_item_queries,
    known_item_query,
    nonsense_queries,
)
from dsearch.types import Document

LONG = Document("a", " ".join(f"Word{number}," for number in range(200)))


def test_a_query_is_part_of_a_stretch_in_its_order() -> None:
    for seed in range(50):
        query = known_item_query(LONG, seed)
        if query is None:
            continue
        places = [int(word.removeprefix("word")) for word in query.split()]  # without its comma, small
        assert places == sorted(set(places))
        assert 2 <= len(places) <= 14
        assert places[-1] - places[0] < 14


def test_a_query_depends_on_its_document_and_on_the_seed_alone() -> None:
    other = Document("b", LONG.text)
    drawn = known_item_queries([LONG, other], seed=3)
    assert drawn == [
        (known_item_query(LONG, 3), "a"),
        (known_item_query(other, 3), "b"),
    ]
    assert drawn[0][0] != drawn[1][0]
    assert known_item_query(LONG, 4) != known_item_query(LONG, 3)


def test_short_words_are_left_out_and_short_documents_have_no_query() -> None:
    assert known_item_query(Document("a", "one two six ten for")) is None  # words of three letters
    assert known_item_query(Document("a", "river stone water lamp")) is None  # four words
    assert known_item_queries([Document("a", "short"), LONG]) == [(known_item_query(LONG), "a")]


def test_nonsense_is_drawn_of_every_kind() -> None:
    drawn = nonsense_queries(300)
    assert len(drawn) == 300
    assert drawn == nonsense_queries(300) != nonsense_queries(300, seed=1)
    lengths = {len(query.split()) for query in drawn}
    assert lengths == {1, 2, 3, 4}
    keyboard = [word for query in drawn[1::3] for word in query.split()]
    rows = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    assert all(3 <= len(word) <= 6 and any(word in row * 2 for row in rows) for word in keyboard)
    assert all(3 <= len(word) <= 9 for query in drawn[0::3] for word in query.split())
    assert len(set(EVERYDAY)) == len(EVERYDAY) > 30


def test_the_shortest_document_and_the_shortest_words_that_make_a_query() -> None:
    five = Document("a", "river stone water house light")
    drawn = {known_item_query(five, seed) for seed in range(40)} - {None}
    assert drawn
    assert min(len(query.split()) for query in drawn if query) == 2
    four = Document("a", "lamp lamp lamp lamp lamp")  # of four letters each
    assert any(known_item_query(four, seed) for seed in range(10))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four! Five?", ["One two.", "Three four!", "Five?"]),
        ("See e.g. Smith et al. The end.", ["See e.g. Smith et al. The end."]),
        ("By J. Smith. It is 3.14 wide.", ["By J. Smith.", "It is 3.14 wide."]),
        ('He said "Stop." Then left.', ['He said "Stop."', "Then left."]),
        ("In vitro . the cells died .", ["In vitro . the cells died ."]),
        ("broken\nline. Next\n\nBlock", ["broken line.", "Next", "Block"]),
        ("Items:\n- one\n- two\n1) three", ["Items:", "- one", "- two", "1) three"]),
        ("Wait... What? (Yes.) 42 is it.", ["Wait...", "What?", "(Yes.)", "42 is it."]),
        ("It is in chapter 4. The rest follows.", ["It is in chapter 4.", "The rest follows."]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_cuts(text, expected):
    assert sentences(text) == expected


@given(st.text(st.sampled_from('ab. !?\n"A-1)'), max_size=60))
def test_nothing_is_lost_and_nothing_is_blank(text):
    found = sentences(text)
    assert " ".join(found).split() == text.split()
    assert all(found)


def article(identity, *lines):
    return Document(identity, " ".join(lines))


A = article(
    "a", "The first has five words.", "The second has five words.", "The third has five words.", "Short one."
)
B = article("b", "Another text starts right here.", "The second has five words.", "It ends with this line.")
LONE = article("lone", "This is its only sentence.")


def test_sentences_of_lower_case_text_begin_small() -> None:
    first = " ".join(["the lift of a wing in a slipstream was tested"] * 4)
    text = f"{first} . it rose by 4.5 percent. e.g. drag fell"
    assert len(text.split()) > LOWER_CASE_WORDS
    assert sentences(text) == [f"{first} .", "it rose by 4.5 percent.", "e.g. drag fell"]
    with_capitals = text.replace("the lift", "The lift")
    assert len(sentences(with_capitals)) == 1  # there a small letter begins none
    assert len(sentences("it rose. drag fell")) == 1  # too short to tell
    short = "an account is given of the tunnel now nearing completion . drag is reviewed ."
    assert len(short.split()) < 40
    assert [len(one.split()) for one in sentences(short)] == [11, 4]


def test_names_with_capitals_do_not_hide_that_sentences_begin_small() -> None:
    text = "we compared DNA of both. the PCR failed twice. nobody knows. Smith does. it was done. so be it."
    assert sentences(text)[:2] == ["we compared DNA of both.", "the PCR failed twice."]
    assert len(sentences(text)) == 6
    few = "we compared DNA. the PCR failed. nobody knows."
    assert sentences(few) == [few]  # three beginnings do not tell
    usual = "The sp. nov. of Smith is var. alba. It is small. It was found in Peru. Nobody saw it again. End."
    assert sentences(usual)[0] == "The sp. nov. of Smith is var. alba."


def test_small_abbreviations_pauses_and_marks_end_nothing_in_lower_case() -> None:
    text = (
        "cbs sent it in the u.s. , and apple co. paid for i am ... sasha fierce at st. paul as yahoo! , intel"
    )
    assert sentences(text) == [text]


def test_two_sentences_of_each_body_for_its_own_document():
    pairs = inverse_cloze([A, B, LONE])
    assert [identity for _, identity in pairs] == ["a", "a", "b", "b"]
    bodies = {"a": A.text, "b": B.text}
    assert all(sentence in bodies[identity] for sentence, identity in pairs)
    assert len(set(pairs)) == 4


def test_shared_short_and_long_sentences_are_not_drawn():
    drawn = {sentence for sentence, _ in inverse_cloze([A, B], per_document=9)}
    assert "The second has five words." not in drawn
    assert "Short one." not in drawn
    assert inverse_cloze([A], max_words=4) == []
    assert len(inverse_cloze([A], per_document=9)) == 3


def test_a_sentence_that_a_text_repeats_is_drawn_once():
    twice = article("t", "The first has five words.", "The next has five words.", "The first has five words.")
    assert len(inverse_cloze([twice], per_document=9)) == 2


def test_code_is_not_drawn():
    code = Document(
        "code",
        ">>> counter = Counter(a) >>> print(counter.total())\n\nf(a_1, b_2, c_3, d_4)\n\n1 2 3 4 5 6 7",
    )
    assert inverse_cloze([code]) == []
    few = "a sum of all x_1 + y_2 * z_3 / w_4 - v_5 == u_6"  # words of so many parts
    assert inverse_cloze([Document("few", f"{few}\n\n{few} + t_7")]) == []
    assert inverse_cloze([Document("one", "f(a_1)\n\nThis is the only sentence here.")]) == []
    prose = Document("prose", "It's a well-known (if slow) way, isn't it?\n\nThe value `x_1` is 3.5 of all.")
    assert len(inverse_cloze([prose], min_words=3)) == 2


def test_titles_of_their_own_are_queries():
    titles = [
        ("On the lift of wings .", "a"),
        ("Same title as another", "b"),
        ("same  title as another", "c"),
        ("collections.Counter", "d"),
        ("f(x) = 2 3 4", "e"),
        ("", "f"),
    ]
    assert title_queries(titles) == [("On the lift of wings", "a")]
    assert title_queries(titles, max_words=4) == []


def test_draws_depend_on_the_seed_and_not_on_the_order():
    many = [
        article(f"d{n}", *(f"Sentence {m} of document number {n}." for m in range(20))) for n in range(10)
    ]
    drawn = inverse_cloze(many, seed=1)
    assert inverse_cloze(many, seed=1) == drawn
    assert inverse_cloze(many, seed=2) != drawn
    assert sorted(inverse_cloze(many[::-1], seed=1)) == sorted(drawn)
    assert len({sentence.split()[1] for sentence, _ in drawn}) > 5  # not the same places in every document


def test_the_least_of_small_letters_that_tell_and_the_most_words_of_a_sentence() -> None:
    ending = " it rose . it"
    for words, count in ((LOWER_CASE_WORDS, 2), (LOWER_CASE_WORDS - 1, 1)):
        text = " ".join(["wing"] * (words - 4)) + ending
        assert len(text.split()) == words
        assert len(sentences(text)) == count
    starts = ["Ann sat.", *["it rose."] * 4]  # four of five, among names
    assert len(sentences(" ".join(starts))) == 5
    assert len(sentences(" ".join(starts[:-1]))) == 1
    assert title_queries([("one two three four", "a")], max_words=4) == [("one two three four", "a")]
    assert title_queries([("one two three four", "a")], max_words=3) == []
