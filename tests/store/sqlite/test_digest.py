"""The digests of format 1, computed from their description alone: to change one is to change the format."""

from __future__ import annotations

import hashlib
import sqlite3

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.store.sqlite.digest import (
    add_facts,
    canonical_json,
    content_fact,
    document_digest,
    document_fact,
    embedding_digest,
    embedding_fact,
    judged_digest,
    judged_fact,
    passages_digest,
    passages_fact,
    record_fact,
    tombstone_fact,
)
from dsearch.store.sqlite.watermark import read_watermark
from dsearch.types import Document


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def number(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def test_a_collection_sums_to_what_the_description_says(store, folder, embed):
    store.upsert([Document("é", "text", "title", {"b": [1, 2.0], "a": None}, 3)], embed("title text"))  # 1
    store.delete(["é"])  # 2
    store.add_model("v1", "v0", {"x": "ü"})  # 3
    store.promote("v1")  # 4
    metadata = b'{"a":null,"b":[1,2.0]}'
    document = sha256(
        u64(2), u64(5), u64(4), u64(len(metadata)), u64(3), "étitletext".encode(), metadata, b"3.0"
    )
    embedding = sha256(embed("title text").tobytes())
    facts = [
        sha256(b"meta".ljust(16, b"\0"), b'[2,"papers",{"name":"test"},8,null]'),
        sha256(b"document".ljust(16, b"\0"), u64(1), u64(1), document),
        sha256(b"embedding".ljust(16, b"\0"), u64(1), u64(1), embedding),
        sha256(b"tombstone".ljust(16, b"\0"), u64(1), u64(2)),
        sha256(b"model".ljust(16, b"\0"), '[1,0,"{\\"x\\":\\"ü\\"}",3]'.encode()),
        sha256(b"live".ljust(16, b"\0"), b'[4,"model",1]'),
    ]
    expected = (sum(number(fact) for fact in facts) % 2**256).to_bytes(32, "little")
    mark = read_watermark(folder).newest
    assert (mark.sequence, mark.digest) == (4, expected)
    connection = sqlite3.connect(folder / "documents.db")
    assert connection.execute("SELECT digest FROM document").fetchall() == [(document,)]
    assert connection.execute("SELECT digest FROM embedding").fetchall() == [(embedding,)]
    connection.close()
    content = (folder / "watermark").read_bytes()
    body = b"dsearchW" + (1).to_bytes(4, "little") + bytes(4) + u64(4) + expected
    assert len(content) == 8192
    assert (body + sha256(body)).ljust(4096, b"\0") in (content[:4096], content[4096:])


FIELDS = st.tuples(*[st.binary(max_size=3)] * 5)


@given(FIELDS, FIELDS)
def test_other_fields_have_another_digest(one, other):
    assert (document_digest(*one) == document_digest(*other)) == (one == other)


def test_a_byte_that_moves_to_the_next_field_changes_the_digest():
    assert document_digest(b"ab", b"c", b"", b"{}", b"") != document_digest(b"a", b"bc", b"", b"{}", b"")


@given(
    st.permutations([document_fact(1, 1, b"d" * 32), document_fact(2, 1, b"e" * 32), tombstone_fact(1, 2)])
)
@settings(max_examples=by_size(10, 100))
def test_the_order_of_facts_does_not_matter_and_what_was_added_can_be_taken_away(facts):
    digest = bytes(32)
    for fact in facts:
        digest = add_facts(digest, fact)
    assert digest == add_facts(bytes(32), sum(facts))
    assert add_facts(digest, -sum(facts)) == bytes(32)


def test_equal_values_have_equal_json():
    assert canonical_json({"b": 1, "a": {"d": "é", "c": []}}) == '{"a":{"c":[],"d":"é"},"b":1}'


def test_every_digest_is_of_its_parts_with_their_lengths():
    """Bytes that move from one part to the next give another digest."""
    assert embedding_digest(b"vector") == sha256(b"vector")
    assert passages_digest(b"spans", b"vectors") == sha256(u64(5), b"spans", b"vectors")
    assert passages_digest(b"span", b"svectors") != passages_digest(b"spans", b"vectors")
    assert judged_digest([b"text", b"", b"key"]) == sha256(u64(4), b"text", u64(0), u64(3), b"key")
    lengths = b"".join(map(u64, (1, 2, 3, 4, 5)))
    assert document_digest(b"i", b"tt", b"xxx", b"mmmm", b"vvvvv") == sha256(lengths, b"ittxxxmmmmvvvvv")


def test_every_fact_names_its_kind_row_and_operation():
    digest = bytes(range(32))
    facts = {
        b"document": document_fact(7, 9, digest),
        b"embedding": embedding_fact(7, 9, digest),
        b"passages": passages_fact(7, 9, digest),
        b"judged": judged_fact(7, 9, digest),
    }
    for kind, fact in facts.items():
        assert fact == number(sha256(kind.ljust(16, b"\0"), u64(7), u64(9), digest)), kind
    assert tombstone_fact(7, 9) == number(sha256(b"tombstone".ljust(16, b"\0"), u64(7), u64(9)))
    assert content_fact(b"event", digest) == number(sha256(b"event".ljust(16, b"\0"), digest))
    assert record_fact(b"live", 3, "model", None) == number(
        sha256(b"live".ljust(16, b"\0"), b'[3,"model",null]')
    )


def test_facts_are_taken_away_as_they_were_added():
    start = bytes(range(32))
    fact = tombstone_fact(1, 2)
    assert add_facts(add_facts(start, fact), -fact) == start
    assert add_facts(b"\xff" * 32, 1) == bytes(32)
    assert len(add_facts(bytes(32), -1)) == 32
