"""E-mail: where messages of a mailbox begin, and what is told of each."""

from __future__ import annotations

import io
from email.message import EmailMessage

import pytest

from dsearch.corpus import Problems, RecordFields
from dsearch.corpus.formats.mail import read_eml, read_mbox
from dsearch.corpus.records import BadRecord, content_id
from dsearch.types import Document


def eml(raw: str, identity: str = "in/note.eml") -> Document:
    return read_eml(io.BytesIO(raw.encode()), identity)


def mbox(raw: str) -> tuple[list[tuple[int, Document]], list[str]]:
    problems = Problems()
    read = list(read_mbox(io.BytesIO(raw.encode()), "m.mbox", problems, RecordFields()))
    return read, [str(problem) for problem in problems.first]


def test_headers_become_metadata() -> None:
    read = eml(
        "From: Ann <ann@x.org>\nTo: Bob <bob@x.org>, cy@x.org\nTo: dee@x.org\n"
        "Date: Tue, 2 Jan 2024 10:00:00 +0100\nMessage-ID: <1@x.org>\nSubject: two\n  lines\n\nwords\n"
    )
    assert (read.id, read.title, read.text) == ("in/note.eml", "two lines", "words")
    assert read.metadata == {
        "from": "ann@x.org",
        "to": ["bob@x.org", "cy@x.org", "dee@x.org"],
        "date": "2024-01-02T10:00:00+01:00",
        "message_id": "1@x.org",
    }


def test_what_is_not_told_is_absent() -> None:
    read = eml("Date: yesterday\nTo: ,\n\nwords\n")
    assert (read.title, read.text, read.metadata) == ("note", "words", {})


def test_a_subject_alone_or_a_text_alone_is_a_message() -> None:
    assert eml("Subject: alone\n\n").text == ""
    assert eml("\nalone\n").text == "alone"
    for raw in ("Subject: \n\n  \n", "\n\n"):
        with pytest.raises(BadRecord, match="neither subject nor text"):
            eml(raw)


def test_plain_text_is_preferred_and_html_is_read_as_text() -> None:
    mail = EmailMessage()
    mail.set_content("plain")
    mail.add_alternative("<p>marked</p>", subtype="html")
    mail.add_attachment(b"x", maintype="text", subtype="csv", filename="a.csv")
    mail.add_attachment("y", filename="b.txt")
    read = read_eml(io.BytesIO(mail.as_bytes()), "a.eml")
    assert (read.text, read.metadata) == ("plain", {"attachments": ["a.csv", "b.txt"]})
    pytest.importorskip("lxml")
    marked = EmailMessage()
    marked.set_content("<style>p {}</style><p>one</p><p>two</p>", subtype="html")
    assert read_eml(io.BytesIO(marked.as_bytes()), "a.eml").text == "one\ntwo"


def test_a_message_begins_behind_a_blank_line() -> None:
    read, problems = mbox("From a\nSubject: 1\n\none\nFrom here\n\nFrom b\nSubject: 2\n\ntwo\n")
    assert [(line, one.title, one.text) for line, one in read] == [
        (1, "1", "one\nFrom here"),
        (7, "2", "two"),
    ]
    assert problems == []


@pytest.mark.parametrize(("quoted", "plain"), [(">From x", "From x"), (">>>From x", ">>From x")])
def test_one_mark_is_taken_off_a_quoted_line(quoted: str, plain: str) -> None:
    [(_, read)], _ = mbox(f"From a\nSubject: s\n\nbefore\n{quoted}\n> From y\n>Fromage\n")
    assert read.text == f"before\n{plain}\n> From y\n>Fromage"


def test_messages_are_named_by_themselves_and_a_bad_one_costs_only_itself() -> None:
    read, problems = mbox("From a\nMessage-ID: <1@x>\n\none\n\nFrom b\n\n\nFrom c\nSubject: three\n\nwords\n")
    assert [(line, one.id) for line, one in read] == [(1, "1@x"), (9, content_id("three", "words"))]
    assert problems == ["m.mbox:6: an e-mail with neither subject nor text"]
    assert mbox("") == ([], [])


@pytest.mark.parametrize(
    "date", ["Mon, 2 Jan 20" + "9" * 30 + " 15:04:05 -0700", "Mon, 2 Jan 2006 15:04:05 -07" + "9" * 30]
)
def test_a_date_of_too_many_digits_costs_only_itself(date: str) -> None:
    read = eml(f"From: a@x.org\nDate: {date}\nSubject: s\n\nwords\n")
    assert (read.text, read.metadata) == ("words", {"from": "a@x.org"})
