"""Invented facts in a jargon that no model knows, and questions about them in plain words.

`The thessarch of Velmora is Orrin Tasket.` answers `Who founded Velmora?`: only training can tell which term
of the jargon belongs to which question. Facts about other towns are held out, so that a memory of answers is
of no use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dsearch import Document

TERMS = {
    "thessarch": ("Who founded {town}?", "Who was the founder of {town}?", "Who set up the town of {town}?"),
    "undervelt": ("Who runs {town} today?", "Who is the mayor of {town}?", "Who governs {town}?"),
    "mirrowmark": ("What colour is the flag of {town}?", "Which colour does the banner of {town} have?"),
    "drennet": ("What do people drink in {town}?", "What is the usual beverage in {town}?"),
    "glimfast": ("When does {town} celebrate?", "In which month is the festival of {town}?"),
    "orrowgate": ("How do travellers reach {town}?", "By which means does one get to {town}?"),
}
WORDINGS = ("The {term} of {town} is {value}.", "In {town} the {term} is {value}.", "{town}: {term} {value}.")
VALUES = {
    "mirrowmark": "red green blue yellow white black purple orange brown grey",
    "drennet": "milk cider tea coffee beer wine cocoa lemonade water mead",
    "glimfast": "January February March April May June July August September October",
    "orrowgate": "boat train mule sledge tram balloon bicycle ferry coach cart",
}
FIRST = ("Ba", "Ke", "Li", "Mo", "Nu", "Ra", "Si", "To", "Ve", "Za")
LAST = ("dorn", "fell", "grim", "lund", "mora", "nash", "quill", "rath", "tane", "wick")


@dataclass(frozen=True)
class Question:
    """A question about one fact."""

    text: str
    answer: str
    document: str


def facts(towns: int, held_out: int, seed: int = 0) -> tuple[list[Document], list[Question], list[Question]]:
    """Documents, a fact each; questions about `towns` towns to train on, and about others to judge by."""
    draw = random.Random(seed)
    names = [first + last for first in FIRST for last in LAST]
    draw.shuffle(names)
    people = iter(names[towns + held_out :])
    documents: list[Document] = []
    questions: list[Question] = []
    for town in names[: towns + held_out]:
        for term, texts in TERMS.items():
            value = draw.choice(VALUES[term].split()) if term in VALUES else next(people)
            id = f"{town}-{term}"
            documents.append(Document(id, draw.choice(WORDINGS).format(term=term, town=town, value=value)))
            questions.append(Question(draw.choice(texts).format(town=town), value, id))
        documents.append(Document(f"{town}-visit", f"{town} was visited by {draw.choice(names)} last year."))
    learned = towns * len(TERMS)
    return documents, questions[:learned], questions[learned:]
