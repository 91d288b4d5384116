"""Calls of clients on a collection: pages of documents, deletions, facets, rows, and what each refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, calls, head_bytes
from dsearch.errors import Conflict, DocumentNotFound, InvalidCursor, InvalidRequest
from dsearch.types import Document


class Shelf:
    """Documents a, b, c … of a text's length each, every second one even; notes what is read."""

    def __init__(self, lengths: list[int]):
        self.documents = [Document(chr(97 + at), "x" * length) for at, length in enumerate(lengths)]
        self.read: list[tuple[str | None, int, object]] = []

    def list(self, after: str | None, limit: int, filter: object = None) -> list[Document]:
        self.read.append((after, limit, filter))
        left = [one for one in self.documents if after is None or one.id > after]
        return [one for one in left if filter is None or ord(one.id) % 2 == 0][:limit]


def paged(shelf: Shelf, **options: Any) -> Any:
    collection: Any = SimpleNamespace(store=shelf)
    return calls.list_documents(collection, **options)


pytestmark = pytest.mark.usefixtures("unchecked")  # the store of a page is a stand-in


def ids(page: Any) -> str:
    return "".join(document.id for document in page.documents)


def test_pages_follow_each_other_by_their_cursors_and_the_last_has_none() -> None:
    shelf, cursor, seen = Shelf([1] * 7), None, list[str]()
    for _ in range(3):
        page = paged(shelf, limit=3, cursor=cursor)
        seen.append(ids(page))
        cursor = page.next
    assert (seen, cursor) == (["abc", "def", "g"], None)
    assert paged(shelf, limit=7).next is None  # exactly all
    assert paged(shelf, limit=6).next is not None
    assert paged(Shelf([]), limit=3).next is None
    with pytest.raises(InvalidRequest, match="limit=0; use 1 to 1000"):
        paged(shelf, limit=0)


def test_a_filter_counts_for_the_next_page_too() -> None:
    shelf = Shelf([1] * 7)  # b, d and f pass
    page = paged(shelf, limit=3, filter={"even": True})
    assert (ids(page), page.next) == ("bdf", None)
    first = paged(shelf, limit=2, filter={"even": True})
    assert ids(first) == "bd"
    assert ids(paged(shelf, limit=2, cursor=first.next, filter={"even": True})) == "f"
    assert all(filter == {"even": True} for _, _, filter in shelf.read)


def test_long_texts_end_a_page_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAGE_CHARACTERS", 10)
    monkeypatch.setattr(calls, "_READ_AT_ONCE", 2)
    shelf = Shelf([4, 5, 1, 1, 1])
    page = paged(shelf, limit=5)
    assert (ids(page), page.next) == ("abcd", calls.cursor_after("d"))  # nine are fewer than ten
    assert ids(paged(shelf, limit=5, cursor=page.next)) == "e"
    assert [limit for _, limit, _ in shelf.read] == [2, 2, 1, 2]


@pytest.mark.parametrize("id", ["a", "ab", "abc", "abcd", "ü/+", "x" * 500])
def test_a_cursor_is_the_id_behind_which_it_goes_on(id: str) -> None:
    cursor = calls.cursor_after(id)
    assert "=" not in cursor
    shelf = Shelf([1])
    paged(shelf, limit=1, cursor=cursor)
    assert shelf.read[0][0] == id


@pytest.mark.parametrize("cursor", ["!", "YQ==x", "_w", "é", "a b"])
def test_other_cursors_are_refused(cursor: str) -> None:
    with pytest.raises(InvalidCursor, match="use the `next` of an answer, or none to begin"):
        paged(Shelf([1]), limit=1, cursor=cursor)


def test_deletions_tell_what_was_there(collection: Collection) -> None:
    one = calls.delete_document(collection, "d1")
    assert (one.sequence, one.deleted) == (collection.store.sequence, 1)
    with pytest.raises(DocumentNotFound, match="no document 'd1' in collection 'food'; nothing was deleted"):
        calls.delete_document(collection, "d1")
    some = calls.delete_documents(collection, ids=["d1", "d2", "d2", "other"])
    assert (some.deleted, some.missing) == (1, 2)
    by_filter = calls.delete_documents(collection, filter={"number": {"gte": 14}})
    assert (by_filter.deleted, by_filter.missing) == (2, 0)
    for given, said in (({}, "neither ids nor filter"), ({"ids": [], "filter": {}}, "ids and filter")):
        with pytest.raises(InvalidRequest, match=f"{said}; give one of the two"):
            calls.delete_documents(collection, **given)  # type: ignore[arg-type]


def test_facets_are_of_the_documents_that_pass_and_misspelt_names_are_refused(collection: Collection) -> None:
    facets = calls.count_facets(collection, ["number"], filter={"number": {"lt": 3}}, limit=2)
    assert (facets.documents, [value.value for value in facets.facets["number"]]) == (3, [0, 1])
    assert calls.count_facets(collection, []).documents == 16
    assert calls.count_facets(collection, ["number"], filter={"number": {"gt": 99}}).documents == 0
    with pytest.raises(InvalidRequest, match="did you mean number"):
        calls.count_facets(collection, ["nubmer"])
    with pytest.raises(InvalidRequest, match="did you mean number"):
        calls.count_facets(collection, ["number"], filter={"nubmer": {"eq": 1}})


def test_heads_are_added_behind_the_live_version_up_to_the_most(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = head_bytes(Head(32))
    first = calls.add_head(collection, content)
    assert (first.model, first.parent, first.sequence) == ("v1", "v0", collection.store.sequence)
    assert calls.add_head(collection, content, "v1").parent == "v1"
    assert collection.store.model("v2").record["scope"] == "uploaded"
    monkeypatch.setattr(calls, "MAX_MODELS", 2)
    with pytest.raises(Conflict, match="collection 'food' has 2 models, the most that may be"):
        calls.add_head(collection, content)
    draft = calls.add_draft(collection, content, "v1", "me")
    assert (draft.parent, draft.expires_s) == ("v1", 600)
    assert calls.draft_bytes(collection, draft.draft, "me") == content
    calls.drop_draft(collection, draft.draft, "me")
    assert len(collection.drafts) == 0


def test_a_promotion_tells_what_answered_before(collection: Collection) -> None:
    for _ in range(2):
        collection.add_model(Head(32), {})
    done = calls.promote(collection, "v1")
    assert (done.model, done.previous) == ("v1", "v0")
    done = calls.rollback(collection)
    assert (done.model, done.previous) == ("v0", "v1")
    models = calls.list_models(collection)
    assert models.live == "v0"
    assert [(one.version, one.live, one.parent) for one in models.models] == [
        ("v0", True, None),
        ("v1", False, "v0"),
        ("v2", False, "v0"),
    ]


@pytest.mark.parametrize("limit", [-1, 0, 1001])
def test_a_page_of_no_length_is_refused_as_over_http(limit: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"limit={limit}; use 1 to 1000"):
        paged(Shelf([1] * 7), limit=limit)


@pytest.mark.parametrize("p_value", [0.0, 0.04, 1.0])
def test_a_version_has_one_verdict_against_what_answers(collection: Collection, p_value: float) -> None:
    """Asked again and again, chance would let anything pass; a p of 0 is a verdict as any other."""
    judged = {"gate": {"p_value": p_value}, "verdict": "better"}
    records: list[dict[str, Any]] = [judged, {**judged, calls.OUTDATED_BY: "v0"}, {"gate": None}, {}]
    versions = [collection.add_model(Head(32), record) for record in records]
    with pytest.raises(Conflict, match=r"v1 was judged already \(better\); save it again"):
        calls.require_unjudged(collection, versions[0])
    for version in versions[1:]:
        calls.require_unjudged(collection, version)
    collection.promote(versions[2])
    for version in ("v0", versions[2]):
        with pytest.raises(Conflict, match=f"{version} answers, or is always there"):
            calls.require_unjudged(collection, version)
