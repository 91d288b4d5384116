"""Tokens follow their documents: written, changed, deleted, built, lost and computed again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.engine.long_documents import OPTIONS, QUERIES, some, words
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.indexing.chunking import PassageLengths
from dsearch.engine.indexing.tokens import (
    ALIKE,
    MOST_TOKENS,
    RawTokens,
    TokenKeeper,
    distinct_tokens,
    encode_with_tokens,
    is_of_word,
    rounded_tokens,
)
from dsearch.errors import CorruptData, EncoderUnavailable
from dsearch.index.tokens import content_of
from dsearch.types import Document


@pytest.fixture
def staged(engine: SearchEngine, documents: list[Document]) -> Collection:
    collection = engine.create("staged")
    collection.ingest(documents, second_stage=True)
    return collection


def words_of(collection: Collection, id: str) -> list[str] | None:
    """The words at the places of a visible document's tokens."""
    snapshot = collection.snapshot
    row = collection.store.rows_of([id])[id]
    (document,) = collection.store.documents([row])
    assert snapshot.tokens is not None
    tokens = snapshot.tokens.document(int(snapshot.positions_of(np.array([row]))[0]))
    content = content_of(document.title, document.text)
    return None if tokens is None else [content[start:end] for start, end in tokens.spans.tolist()]


def test_each_document_has_the_tokens_of_its_words(staged: Collection) -> None:
    assert words_of(staged, "d0") == ["apple", "bread", "dough", "number0"]
    assert staged.tokens.missing().tolist() == []
    assert staged.tokens.spool.rows().tolist() == []  # the generation has them


def test_one_pass_gives_embeddings_and_tokens(engine: SearchEngine, encoder: HashingEncoder) -> None:
    collection = engine.create("counted")
    collection.ingest([Document(id="a", text="honey and juice")], second_stage=True)
    encoder.encoded = 0
    collection.upsert([Document(id="b", text="kale")])
    assert encoder.encoded == 1


def test_rows_written_since_have_tokens(staged: Collection) -> None:
    staged.upsert([Document(id="d0", title="", text="  fresh honey"), Document(id="new", text="the oat!")])
    assert words_of(staged, "d0") == ["fresh", "honey"]
    assert words_of(staged, "new") == ["oat"]
    staged.refresh()
    assert words_of(staged, "d0") == ["fresh", "honey"]
    assert staged.tokens.spool.rows().tolist() == []


def test_tokens_stay_where_only_metadata_change(staged: Collection, encoder: HashingEncoder) -> None:
    encoder.encoded = 0
    staged.update_metadata("d1", {"number": 7})
    (document,) = staged.store.documents([staged.store.rows_of(["d2"])["d2"]])
    staged.upsert([Document(id="d2", title=document.title, text=document.text, metadata={"number": 8})])
    assert words_of(staged, "d1") == ["bread", "cheese", "ice", "number1"]
    assert words_of(staged, "d2") == ["cheese", "dough", "nut", "number2"]
    assert staged.tokens.missing().tolist() == []
    assert encoder.encoded == 0


def test_a_deleted_document_leaves_no_tokens(staged: Collection) -> None:
    staged.upsert([Document(id="gone", text="nut")])
    staged.delete(["gone", "d3"])
    staged.refresh()
    built = staged.snapshot.generation
    assert built.tokens is not None
    assert len(built.tokens) == len(built) == 15
    assert staged.tokens.spool.rows().tolist() == []


def test_a_published_generation_leaves_the_tokens_of_what_came_meanwhile(staged: Collection) -> None:
    """Written while it was built: it has them not, and whoever searches the row needs them."""
    built = staged.store.rows()
    staged.upsert([Document(id="meanwhile", text="lemon"), Document(id="gone", text="nut")])
    meanwhile, gone = (staged.store.rows_of([id])[id] for id in ("meanwhile", "gone"))
    assert sorted(staged.tokens.spool.rows().tolist()) == sorted([meanwhile, gone])
    staged.tokens.published(built, np.array([meanwhile], np.int64))
    assert staged.tokens.spool.rows().tolist() == [meanwhile]


def test_tokens_are_read_from_the_generation_that_is_live(staged: Collection) -> None:
    keeper = TokenKeeper(staged.store)
    staged.upsert([Document(id="late", text="lemon")])
    row = staged.store.rows_of(["late"])["late"]
    assert keeper.of_rows([row])[row] is not None  # beside
    staged.refresh()
    tokens = keeper.of_rows([row])[row]  # in the generation
    assert tokens is not None
    assert tokens.spans.tolist() == [[1, 6]]
    keeper.close()


def test_damaged_tokens_are_reported_each_time(staged: Collection) -> None:
    """Not once, and then a collection without tokens."""
    keeper = TokenKeeper(staged.store)
    row = staged.store.rows_of(["d0"])["d0"]
    number = staged.snapshot.generation.number
    file = max((staged.store.path / "generations" / f"{number:06d}" / "tokens").iterdir())
    whole = file.read_bytes()
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    for _ in range(2):
        with pytest.raises(CorruptData):
            keeper.of_rows([row])
    file.write_bytes(whole)
    assert keeper.of_rows([row])[row] is not None
    keeper.close()


def test_an_existing_collection_gets_tokens(collection: Collection) -> None:
    assert collection.snapshot.tokens is None
    collection.ingest([])
    assert collection.snapshot.tokens is None
    collection.ingest([], second_stage=True)
    assert words_of(collection, "d0") == ["apple", "bread", "dough", "number0"]


def test_of_a_batch_the_changed_documents_alone_get_passages_and_tokens(engine: SearchEngine) -> None:
    """Those that stay as they are stand among them, long ones too."""
    mixed, whole = (engine.create(name, passages=OPTIONS) for name in ("mixed", "whole"))
    before, after = some(0, 7), some(1, 7)
    mixed.ingest(before, second_stage=True)
    batch = [before[0], after[1], before[2], after[3], before[6], Document("new", words(50, 7)), after[4]]
    mixed.upsert(batch)
    mixed.delete(["d5"])
    codec = mixed.tokens.codec
    assert codec is not None
    whole.tokens.spool.begin(codec)
    whole.ingest(batch, second_stage=True)
    for document in batch:
        assert words_of(mixed, document.id) == words_of(whole, document.id)
    for query in QUERIES:
        one, other = (made.search(query, limit=20, mode="dense").hits for made in (mixed, whole))
        assert {hit.id: hit.passage for hit in one} == {hit.id: hit.passage for hit in other}


def test_what_a_crash_left_without_tokens_is_filled(staged: Collection) -> None:
    staged.upsert([Document(id="late", text="lemon")])
    staged.tokens.spool.forget(staged.tokens.spool.rows().tolist())  # as if killed between the two writes
    staged.refresh()
    assert words_of(staged, "late") is None
    assert len(staged.tokens.missing()) == 1
    staged.ingest([])
    assert words_of(staged, "late") == ["lemon"]


def test_a_lost_file_beside_costs_only_what_was_fresh(
    tmp_path: Path, encoder: HashingEncoder, documents: list[Document]
) -> None:
    with SearchEngine(tmp_path, encoder=lambda: encoder) as engine:
        collection = engine.create("lost")
        collection.ingest(documents, second_stage=True)
        collection.upsert([Document(id="fresh", text="mango")])
    for path in (tmp_path / "lost").glob("tokens.db*"):
        path.unlink()
    with SearchEngine(tmp_path, encoder=lambda: encoder) as engine:
        collection = engine.collection("lost")
        assert words_of(collection, "d0") == ["apple", "bread", "dough", "number0"]
        assert words_of(collection, "fresh") is None
        collection.upsert([Document(id="fresher", text="grape")])
        assert words_of(collection, "fresher") == ["grape"]
        collection.ingest([])
        assert words_of(collection, "fresh") == ["mango"]


def test_a_lost_generation_is_built_and_filled(
    tmp_path: Path, encoder: HashingEncoder, documents: list[Document]
) -> None:
    with SearchEngine(tmp_path, encoder=lambda: encoder) as engine:
        engine.create("lost").ingest(documents, second_stage=True)
    shutil.rmtree(tmp_path / "lost" / "generations")
    with SearchEngine(tmp_path, encoder=lambda: encoder) as engine:
        collection = engine.collection("lost")
        collection.ingest([])
        assert words_of(collection, "d0") == ["apple", "bread", "dough", "number0"]


@pytest.mark.parametrize("title", ["kale oat", ""])
@pytest.mark.parametrize("lead", ["", "  \n "])
def test_passages_share_no_token(encoder: HashingEncoder, title: str, lead: str) -> None:
    words = [f"w{number}" for number in range(60)]
    document = Document(id="long", title=title, text=lead + " ".join(words))
    _, (tokens,) = encode_with_tokens(encoder, [document], PassageLengths(tokens=20, overlap=4))
    content = content_of(document.title, document.text)
    assert [content[start:end] for start, end in tokens.spans.tolist()] == [*title.split(), *words]


def test_short_documents(engine: SearchEngine) -> None:
    texts = ["", "   ", "!?", "the", "kale"]
    collection = engine.create("short")
    documents = [Document(id=f"a{at}", title="x", text=text) for at, text in enumerate(texts)]
    collection.ingest(documents, second_stage=True)
    words = [words_of(collection, document.id) for document in documents]
    assert words == [["x"], ["x"], ["x"], ["x"], ["x", "kale"]]


def test_a_very_long_document_keeps_tokens_of_all_of_it(staged: Collection) -> None:
    count = 100_000
    text = "ab " * count
    states = np.random.default_rng(0).standard_normal((count, 32)).astype(np.float32)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    spans = np.stack([np.arange(count) * 3, np.arange(count) * 3 + 2], axis=1)
    codec = staged.tokens.codec
    assert codec is not None
    made = rounded_tokens(codec, Document(id="a", text=text), RawTokens(states, spans), ())
    assert len(made.codes) == MOST_TOKENS
    assert made.spans[-1, 0] > 2.9 * count


def test_an_encoder_without_token_states_is_refused(engine: SearchEngine) -> None:
    class Plain(HashingEncoder):
        encode_tokens = None

    with pytest.raises(EncoderUnavailable, match="no token states"):
        engine.create("plain").tokens.begin(Plain())


@pytest.mark.parametrize(
    ("text", "start", "end", "of_word"),
    [
        ("the oat", 0, 3, False),
        ("theory", 0, 3, True),
        ("oat!", 3, 4, False),
        ("oat", 0, 3, True),
        ("The oat", 0, 3, False),
    ],
)
def test_stop_words_and_signs_are_left_out(text: str, start: int, end: int, of_word: bool) -> None:
    assert is_of_word(text, start, end, frozenset(["the"])) is of_word


def test_a_token_is_left_out_if_one_like_it_was_kept_among_the_last() -> None:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(40, 8))
    tokens = directions[rng.integers(0, 40, 700)] + 0.25 * rng.normal(size=(700, 8))
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    kept: list[int] = []
    for token in range(700):
        if not any(tokens[token] @ tokens[other] >= ALIKE for other in kept if token - other <= 256):
            kept.append(token)
    assert 100 < len(kept) < 600
    assert np.flatnonzero(distinct_tokens(tokens.astype(np.float32))).tolist() == kept


def test_a_generation_without_tokens_leaves_those_beside_it(staged: Collection) -> None:
    """The generation knows the rows, and their only tokens are beside it."""
    staged.upsert([Document(id="new", text="oat")])
    keeper = staged.tokens
    rows = staged.store.rows()
    spool = keeper.spool
    spool.put({row: of for row, of in keeper.of_rows(rows.tolist()).items() if of is not None})
    folder = staged.store.path / "generations" / f"{staged.snapshot.generation.number:06d}" / "tokens"
    folder.rename(folder.with_name("elsewhere"))
    keeper.published(rows, rows[:0])
    assert spool.rows().tolist() == rows.tolist()
    assert keeper.missing().tolist() == []
    folder.with_name("elsewhere").rename(folder)
    keeper.published(rows, rows[:0])
    new = staged.store.rows_of(["new"])["new"]
    assert spool.rows().tolist() == [new]
