"""With the real encoder: what stands at the end of 3,000 words is found, and only if they are cut."""

from __future__ import annotations

import random

import pytest

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.indexing.chunking import PassageLengths, spans_of
from dsearch.types import Document

TOPICS = {
    "harbour": "The harbour master counted {n} barges before noon and wrote the tonnage into the ledger.",
    "weather": "Rain fell on {n} days of that month, and the barometer on the pier was repaired twice.",
    "council": "The town council met for {n} hours about the price of coal and adjourned without a vote.",
    "railway": "A railway engineer surveyed {n} miles of the coastal line and found the embankment sound.",
    "market": "At the fish market {n} crates of herring were sold, most of them to buyers from inland.",
    "school": "The school took in {n} new pupils, and a second room was rented above the bakery.",
}
ANSWER = "In spring the painter Isidora Quint climbed the lighthouse and painted its lantern room blue."
QUESTION = "Who painted the lantern room of the lighthouse?"


def chronicle(seed: int, count: int) -> str:
    """About `count` words in paragraphs, none of which answers the question."""
    chance, paragraphs, total = random.Random(seed), [], 0
    while total < count:
        topic = chance.choice(list(TOPICS.values()))
        paragraph = " ".join(topic.format(n=chance.randrange(2, 90)) for _ in range(chance.randrange(3, 7)))
        paragraphs.append(paragraph)
        total += len(paragraph.split())
    return "\n\n".join(paragraphs)


@pytest.fixture(scope="module")
def collections(real_engine: SearchEngine) -> tuple[Collection, Collection]:
    """The same documents, cut and not cut: the answer is the last of the 3,000 words."""
    documents = [
        Document("chronicle", f"{chronicle(1, 3000)}\n\n{ANSWER}", "Chronicle of a small port"),
        Document(
            "painters", "A painter mixes pigments with oil and paints on canvas or on walls.", "Painters"
        ),
        *(Document(f"other{n}", chronicle(n, 60), f"Notes {n}") for n in range(2, 30)),
    ]
    made = []
    for name, options in (("cut", None), ("uncut", PassageOptions(none=True))):
        collection = real_engine.create(name, passages=options)
        collection.ingest(documents)
        made.append(collection)
    return made[0], made[1]


def test_the_end_of_a_long_document_is_found_when_it_is_cut(
    collections: tuple[Collection, Collection],
) -> None:
    cut, uncut = collections
    first = cut.search(QUESTION, mode="dense").hits[0]
    assert first.id == "chronicle"
    assert first.passage is not None
    assert "Isidora Quint" in first.passage.text
    assert first.text[first.passage.start : first.passage.end] == first.passage.text
    before = [hit.id for hit in uncut.search(QUESTION, mode="dense", limit=3).hits]
    assert "chronicle" not in before


def test_every_passage_fits_the_window(collections: tuple[Collection, Collection]) -> None:
    cut, _ = collections
    document, encoder = cut.store.get("chronicle"), cut.encoder
    title, spans = spans_of(encoder, [document], PassageLengths.of(cut.store))[0]
    assert len(spans) > 12
    texts = [f"{title} {document.text[start:end]}" for start, end in spans]
    counts = encoder.token_counts(texts)
    assert max(counts) <= encoder.identity.max_tokens
    assert min(counts) > encoder.identity.max_tokens / 3
    held = {at for start, end in spans for at in range(start, end)}
    assert all(at in held for at, character in enumerate(document.text) if not character.isspace())


def test_short_documents_are_encoded_as_ever(collections: tuple[Collection, Collection]) -> None:
    cut, uncut = collections
    rows = [collection.store.rows_of(["painters", "other3"]) for collection in collections]
    one, other = (
        collection.store.embeddings(list(found.values()))
        for collection, found in zip((cut, uncut), rows, strict=True)
    )
    assert abs(one - other).max() < 1e-6  # the padding of their batches may differ
    assert cut.store.passages(list(rows[0].values())) == {}
