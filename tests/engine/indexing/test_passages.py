"""Long documents are cut, encoded once and stored with their passages."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine.long_documents import (
    OPTIONS,
    QUERIES,
    some,
    states_of,
    words,
)
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import PassageOptions, SearchEngine, SearchLayer
from dsearch.engine.indexing.chunking import PassageLengths, encode, spans_of
from dsearch.errors import Conflict, InvalidRequest
from dsearch.types import Document


def test_collections_without_long_documents_are_what_they_were(engine, documents):
    collection = engine.create("short")
    assert collection.describe().passages == {"tokens": 256, "overlap": 32}
    collection.ingest(documents)
    assert collection.snapshot.passages is None
    assert collection.snapshot.generation.manifest.format == 2
    assert (
        SearchLayer(collection.snapshot, Head(collection.store.dimension))(states_of(collection)).keys is None
    )


def test_a_second_run_encodes_nothing(long, encoder):
    before = encoder.encoded
    report = long.ingest(
        [document for document in some() if document.id not in ("d0", "d1", "d2", "d3", "d4")]
    )
    assert (report.updated, report.inserted) == (0, 2)  # d6 and d8 had been deleted
    long.update_metadata("new", {"year": 1999})
    assert long.search("apple", filter={"year": {"eq": 1999}}, mode="dense").hits[0].passage is not None
    encoded = encoder.encoded - before
    again = long.ingest(some()[5:])
    assert (again.unchanged, again.encoded) == (19, 0)
    assert encoder.encoded - before == encoded


def test_what_is_built_is_what_was_fresh(engine):
    fresh, built = engine.create("fresh", passages=OPTIONS), engine.create("built", passages=OPTIONS)
    fresh.upsert(some())
    built.ingest(some())
    for query in QUERIES:
        one, other = (c.search(query, limit=24, mode="dense").hits for c in (fresh, built))
        assert [(hit.id, hit.passage) for hit in one] == [(hit.id, hit.passage) for hit in other]
    fresh.refresh()
    assert len(fresh.snapshot.fresh) == 0
    assert np.array_equal(fresh.snapshot.generation.vectors, built.snapshot.generation.vectors)


def test_another_process_sees_the_same(long, tmp_path):
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        hits = other.collection("long").search("mango pear kale", mode="dense").hits
        assert hits == long.search("mango pear kale", mode="dense").hits


# --- how documents are cut


def test_passages_fit_their_size_with_the_title(encoder):
    document = Document("d", words(300, 5), "a title of five words")
    embeddings, cut = encode(encoder, [Document("s", "short"), document], PassageLengths(24, 4))
    assert embeddings.shape == (2, 32)
    assert list(cut) == [1]
    spans = cut[1].spans.tolist()
    texts = [f"{document.title} {document.text[start:end]}" for start, end in spans]
    assert max(encoder.token_counts(texts)) <= 24
    again = encoder.encode_documents(texts)
    assert np.array_equal(embeddings[1], again[0])
    assert np.array_equal(cut[1].embeddings, again[1:])


@pytest.mark.parametrize("letters", range(10, 20))
def test_a_document_is_cut_if_it_has_a_token_more_than_a_passage(letters):
    """Even where each letter is a token, and with the marks of a text counted."""

    class Letters(HashingEncoder):
        def token_counts(self, texts):
            return [len(text) + 2 for text in texts]

    document = Document("d", "abcdefghijklmnopqrst"[:letters])
    assert bool(spans_of(Letters(), [document], PassageLengths(16, 2))) == (len(document.content) + 2 > 16)


def test_a_title_that_is_too_long_is_shortened(encoder):
    document = Document("d", words(100, 5), words(200, 6))
    title, spans = spans_of(encoder, [document], PassageLengths(24, 4))[0]
    assert title == " ".join(document.title.split()[:5])
    assert len(spans) > 5


def test_a_document_that_is_nearly_all_title_stays_whole(encoder):
    assert spans_of(encoder, [Document("d", "", words(300, 5))], PassageLengths(24, 4)) == {}
    assert spans_of(encoder, [Document("d", "end", words(300, 5))], PassageLengths(24, 4)) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PassageOptions(tokens=8), "passages of 8 tokens; use 16 to 256"),
        (PassageOptions(tokens=257), "passages of 257 tokens; use 16 to 256"),
        (PassageOptions(tokens=100, overlap=50), "an overlap of 50 tokens; use 0 to 49"),
        (PassageOptions(overlap=-1), "an overlap of -1 tokens"),
        (PassageOptions(tokens=32, none=True), "passages are turned off"),
    ],
)
def test_options_that_make_no_sense_are_refused(engine, options, message):
    with pytest.raises(InvalidRequest, match=message):
        engine.create("refused", passages=options)
    assert "refused" not in engine.names()


def test_how_a_collection_is_cut_stays(engine):
    engine.create("cut", passages=OPTIONS)
    assert engine.collection_or_new("cut", passages=PassageOptions()).name == "cut"
    assert engine.collection_or_new("cut", passages=PassageOptions(tokens=16)).name == "cut"
    for other in (PassageOptions(tokens=32), PassageOptions(overlap=5), PassageOptions(none=True)):
        with pytest.raises(Conflict, match=r"passages of 16 tokens, 4 shared, and that stays.*-c NEW_NAME"):
            engine.collection_or_new("cut", passages=other)
    engine.create("whole", passages=PassageOptions(none=True))
    assert engine.collection_or_new("whole", passages=PassageOptions()).describe().passages is None
    with pytest.raises(Conflict, match="does not cut long documents"):
        engine.collection_or_new("whole", passages=PassageOptions(tokens=32))


class Silent(HashingEncoder):
    token_counts = None


def test_an_encoder_that_counts_no_tokens_cuts_nothing(tmp_path):
    with SearchEngine(tmp_path / "other", encoder=Silent) as engine:
        assert engine.create("plain").describe().passages is None
        with pytest.raises(InvalidRequest, match="counts no tokens"):
            engine.create("refused", passages=OPTIONS)


def test_given_embeddings_are_one_a_document(engine):
    assert engine.create("given", dimension=4).describe().passages is None
