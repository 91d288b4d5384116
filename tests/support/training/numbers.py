"""Queries whose answers share no word with them: `question 31` for `answer 7 red`."""

from __future__ import annotations

from dsearch.engine import Collection
from dsearch.training import Examples, examples_from_judgements
from dsearch.types import Document

PAIRS = 24


def number_documents() -> list[Document]:
    """One answer of each pair."""
    return [Document(id=f"d{i}", text=f"answer {i} red") for i in range(PAIRS)]


def long_text(number: int) -> str:
    """Text of an answer; every third is longer than the tiny encoder's 32 tokens, no passages are alike."""
    words = ["red", "green", "blue", "apple", "bread", "cheese"]
    long = " ".join(f"{words[(number + i) % 6]} {(number * i) % 50}" for i in range(24))
    return f"answer {long if number % 3 == 0 else 'red'} {number}."


def number_examples(collection: Collection) -> Examples:
    """The judged pairs; a query asks by another number, so that no word of it helps."""
    queries = {f"q{i:02d}": f"question {i + PAIRS}" for i in range(PAIRS)}
    return examples_from_judgements(collection, queries, {f"q{i:02d}": {f"d{i}": 1.0} for i in range(PAIRS)})
