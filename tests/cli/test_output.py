"""What a terminal shows of a result: hits, their parts, pieces of texts, and how sure the search is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsearch.cli.output import as_json, check_picture, draw, in_words, show
from dsearch.errors import Command, InvalidRequest
from dsearch.types import (
    AttentionSummary,
    Confidence,
    Explanation,
    Highlight,
    Hit,
    Passage,
    PastQuery,
    PendingDocuments,
    SearchResult,
    Stamp,
    Verdict,
)

HIT = Hit(1, "a", 0.5, 0.9, "Title", "word " * 40)
RESULT = SearchResult("river", [HIT], Stamp(3, "v2", 9), AttentionSummary(20, 1.5), 7.6)


def shown(
    capsys: pytest.CaptureFixture[str], result: SearchResult, empty: str | None = None
) -> tuple[str, str]:
    show(result, empty)
    return capsys.readouterr()


def test_a_hit_has_its_rank_share_name_and_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, RESULT)
    first, second = out.splitlines()
    assert first == f"  1.  50.0% {'█' * 10:<20} a  Title"
    assert second == f"     {('word ' * 40)[:160]}…"
    assert err == "1 of 20 candidates; entropy 1.50 nats; generation 3, model v2; 8 ms\n"
    out, _ = shown(capsys, replace(RESULT, hits=[replace(HIT, text="x" * 160)]))
    assert out.splitlines()[1] == f"     {'x' * 160}"  # nothing of it is left out
    bare = replace(HIT, title="a", text="short", weight=0.0, duplicates=2)
    out, _ = shown(capsys, replace(RESULT, hits=[bare]))
    assert out == f"  1.   0.0% {'':<20} a  (and 2 of the same text)\n     short\n"


def test_what_is_known_of_the_whole_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = PendingDocuments(5, Command("index", ("-c", "papers")))
    result = replace(
        RESULT,
        attention=AttentionSummary(20, 1.5, 0.987),
        next_cursor="next",
        waiting=waiting,
    )
    _, err = shown(capsys, result)
    assert err.splitlines() == [
        ("1 of 20 candidates, 98.7% of the exact attention; entropy 1.50 nats; generation 3, model v2; 8 ms"),
        "more: --cursor next",
        "5 documents cannot be found yet; go on with: dsearch index -c papers",
    ]


def test_a_share_of_0_is_said_where_it_was_computed(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = shown(capsys, replace(RESULT, attention=AttentionSummary(20, 1.5, 0.0)))
    assert err.startswith("1 of 20 candidates, 0.0% of the exact attention; entropy ")
    unlikely = Confidence("unlikely", 0.0, "judgements", 50, floor=0.0)
    assert in_words(unlikely) == "the first hit is right with a probability of 0%, by 50 judged queries"


def test_nothing_is_explained_by_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = replace(RESULT, hits=[])
    out, err = shown(capsys, nothing)
    assert (out, err.splitlines()[0]) == (
        "",
        "nothing was found; leave out a filter, quotes or signs, or try other words",
    )
    assert shown(capsys, nothing, "papers") == (
        "",
        "papers has no documents; fill it with: dsearch index SOURCE -c papers\n",
    )
    waiting = replace(
        nothing,
        attention=AttentionSummary(0, 0.0),
        waiting=PendingDocuments(5, Command("index", ("-c", "papers"))),
    )
    found_nothing = replace(waiting, attention=AttentionSummary(20, 1.5))  # among the others
    _, err = shown(capsys, found_nothing)
    first, *_, last = err.splitlines()
    assert first.startswith("nothing was found; leave out a filter")
    assert last == "5 documents cannot be found yet; go on with: dsearch index -c papers"
    _, err = shown(capsys, waiting)
    assert err == "5 documents cannot be found yet; go on with: dsearch index -c papers\n"


def test_less_likely_hits_are_set_apart_once(capsys: pytest.CaptureFixture[str]) -> None:
    hits = [replace(HIT, rank=rank, id=f"d{rank}", score=1 - rank / 10, text="x") for rank in (1, 2, 3, 4)]
    sure = Confidence("likely", 0.814, "judgements", 50, floor=0.8)
    out, err = shown(capsys, replace(RESULT, hits=hits, confidence=sure))
    lines = [line.split()[0] for line in out.splitlines()]
    assert lines == ["1.", "x", "2.", "x", "less", "3.", "x", "4.", "x"]
    said = "the first hit is right with a probability of 81%, by 50 judged queries"
    assert err.splitlines()[0] == said
    later = replace(RESULT, hits=hits[1:], confidence=sure)  # a further page has no first hit
    assert said not in shown(capsys, later)[1]


@pytest.mark.parametrize("verdict", ["likely", "possible", "unlikely", "nothing fits"])
def test_without_judgements_no_hit_is_called_likely_or_unlikely(
    capsys: pytest.CaptureFixture[str], verdict: Verdict
) -> None:
    """Queries made of the documents' own words say little of what people ask, but what nothing answers."""
    hits = [replace(HIT, rank=rank, id=f"d{rank}", score=0.1) for rank in (1, 2)]
    confidence = Confidence(verdict, None, "documents", 9, 0.5)
    out, err = shown(capsys, replace(RESULT, hits=hits, confidence=confidence))
    fits = verdict != "nothing fits"
    assert ("likely" in out) == (not fits)
    assert "likely" not in err
    assert ("nothing fits this query well" in err) == (not fits)


def parts(capsys: pytest.CaptureFixture[str], explain: Explanation) -> list[str]:
    out, _ = shown(capsys, replace(RESULT, hits=[replace(HIT, text="x", explain=explain)]))
    return [line.removeprefix("     ") for line in out.splitlines()[1:-1]]


def test_the_parts_of_a_score_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    one = Explanation([0.6], [0.3], [0.5], terms={"river": [0.3]})
    assert parts(capsys, one) == ["score 0.9000 = dense 0.6000 + keyword 0.3000", "keyword: river 0.3000"]
    more = replace(
        one,
        memory=0.25,
        second_stage=-0.5,
        reranker=-0.125,
        terms={},
        past_queries=[PastQuery("q", 0.25), PastQuery(None, -0.5), PastQuery("small", 4e-5)],
    )
    assert parts(capsys, more) == [
        (
            "score 0.9000 = dense 0.6000 + keyword 0.3000 + past queries 0.2500 + second stage -0.5000"
            " + reranker -0.1250"
        ),
        '  +0.2500 by "q", judged before',
        "  -0.5000 by a query whose words are not kept, judged before",
    ]
    heads = Explanation([0.6, 0.2], [0.3, 0.1], [0.5, 0.25], shares=[0.75, 0.25], mixing=-0.125)
    assert parts(capsys, heads) == [
        "head 0: dense 0.6000 + keyword 0.3000, share 75.0%; weight 50.0%",
        "head 1: dense 0.2000 + keyword 0.1000, share 25.0%; weight 25.0%",
        "score 0.9000 = Σ share · (dense + keyword) + mixing -0.1250",
    ]


@pytest.mark.parametrize(
    ("passage", "expected"),
    [
        (Passage(0, 0, 3, "one"), "one…"),
        (Passage(1, 4, 7, "two"), "…two…"),
        (Passage(2, 8, 13, "three"), "…three"),
        (None, "one two three"),
    ],
)
def test_a_passage_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], passage: Passage | None, expected: str
) -> None:
    hit = replace(HIT, text="one two three", passage=passage)
    assert shown(capsys, replace(RESULT, hits=[hit]))[0].splitlines()[1] == f"     {expected}"


def test_words_of_the_query_are_bold_where_they_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [
        Highlight("title", 0, "Title", [(0, 5)]),
        Highlight("text", 0, "one two", [(0, 3)]),
        Highlight("text", 8, "three\nfour", [(8, 13), (14, 18)]),
    ]
    hit = replace(HIT, text="one two three\nfour five", highlights=pieces)
    plain = shown(capsys, replace(RESULT, hits=[hit]))[0].splitlines()[1:]
    assert plain == ["     one two…", "     …three four…"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    bold = shown(capsys, replace(RESULT, hits=[hit]))[0].splitlines()[1:]
    assert bold == [
        "     \x1b[1mone\x1b[22m two…",
        "     …\x1b[1mthree\x1b[22m \x1b[1mfour\x1b[22m…",
    ]


def test_json_has_the_state_beside_the_hits() -> None:
    content = as_json(RESULT)
    assert (content["generation"], content["model"], content["sequence"]) == (3, "v2", 9)
    assert content["hits"] == [HIT.to_dict()]
    assert "stamp" not in content


def test_a_picture_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    for name in ("a.png", "a.SVG", "a.pdf"):
        check_picture(tmp_path / name)
    with pytest.raises(InvalidRequest, match=r"end it in \.png, \.svg, \.pdf"):
        check_picture(tmp_path / "a.jpg")
    with pytest.raises(InvalidRequest, match="is not a folder; make it first"):
        check_picture(tmp_path / "nowhere" / "a.png")
    with pytest.raises(InvalidRequest, match="nothing was found for 'river'"):
        draw(replace(RESULT, hits=[]), tmp_path / "a.png")


def test_fields_and_sort_show_the_metadata_that_they_name(capsys: pytest.CaptureFixture[str]) -> None:
    hit = replace(HIT, text="", metadata={"by": {"age": 7}, "tags": ["a"]})
    result = replace(RESULT, hits=[hit])
    show(result, None, {"fields": "by.age,tags"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ['     by: {"age":7}', '     tags: ["a"]']  # and no empty line for the text
    show(result, None, {"sort": "-by.age"})
    assert capsys.readouterr().out.splitlines()[1:] == ["     by.age: 7"]
    none = replace(result, hits=[replace(hit, metadata={"by": {"age": 0}})])
    show(none, None, {"sort": "by.age"})
    assert capsys.readouterr().out.splitlines()[1:] == ["     by.age: 0"]
    show(result, None, {"fields": None, "sort": None})
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_empty_answer_names_numbers_of_the_filter_that_are_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = replace(RESULT, hits=[])
    show(nothing, None, {"filter": {"or": [{"price": {"lt": "10.5"}}, {"sold": {"in": ["true", "x", 3]}}]}})
    said = capsys.readouterr().err
    assert 'in the filter "10.5" is a text; if the field has numbers or booleans, write 10.5' in said
    assert '"true" is a text' in said
    assert '"x"' not in said
    assert '"3"' not in said


@pytest.mark.parametrize(("verdict", "folded"), [("possible", 1), ("nothing fits", 0)])
def test_hits_below_the_floor_are_less_likely_and_the_first_only_where_nothing_fits(
    capsys: pytest.CaptureFixture[str], verdict: Verdict, folded: int
) -> None:
    hits = [replace(HIT, rank=rank, id=f"d{rank}", score=0.1) for rank in (1, 2)]
    show(replace(RESULT, hits=hits, confidence=Confidence(verdict, None, "judgements", 9, 0.5)))
    out = capsys.readouterr().out.splitlines()
    firsts = [line.split()[0] for line in out if line.strip().startswith(("1.", "2.", "less likely:"))]
    assert firsts == [*["1.", "2."][:folded], "less", *["1.", "2."][folded:]]  # once
