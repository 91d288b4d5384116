"""What can be asked of a server: each call described once, as a flow of requests and answers.

A new route is a new method here; both clients have it then, and `LocalEngine` has to (a test compares the
signatures).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from dsearch.client import reading
from dsearch.client.answers import (
    Attention,
    Changed,
    CollectionInfo,
    Deleted,
    DocumentPage,
    Facets,
    Model,
    ModelAdded,
    Models,
    Predictions,
    Promoted,
    Recorded,
    Vjp,
    Written,
)
from dsearch.client.flow import NDJSON, TENSORS, Flow, Request, operation
from dsearch.client.options import AttendOptions, DifferentiableOptions, Filter, FindOptions, Part
from dsearch.client.tensors import (
    counted,
    head_file,
    joined,
    joined_gradients,
    numbers,
    parts_of,
    ragged,
)
from dsearch.errors import InvalidDocument
from dsearch.types import Document, SearchResult, Stamp

if TYPE_CHECKING:
    from dsearch.client.tensors import Rows, Vectors

BATCH_DOCUMENTS = 1000
BATCH_BYTES = 4 * 1024 * 1024
SHOWN_PROBLEMS = 100


class Operations:
    """The methods of both clients. Each names the route that it asks."""

    # ---- the server

    @operation
    def ready(self) -> Flow[bool]:
        """Whether searches are answered now; raises Unavailable where they are not. `GET /readyz`"""
        answer = yield Request("GET", "/readyz")
        return reading.content_of(answer)["status"] == "ready"

    # ---- collections

    @operation
    def collections(self) -> Flow[list[CollectionInfo]]:
        """Every collection that can be opened, by name. `GET /v1/collections`"""
        answer = yield Request("GET", "/v1/collections")
        found = reading.content_of(answer)["collections"]
        return [reading.made(CollectionInfo, one) for one in found if "problem" not in one]

    @operation
    def collection(self, name: str) -> Flow[CollectionInfo]:
        """What a collection is and holds. `GET /v1/collections/{name}`"""
        answer = yield Request("GET", _path(name))
        return reading.made(CollectionInfo, reading.content_of(answer))

    @operation
    def create_collection(self, name: str, *, language: str | None = None) -> Flow[CollectionInfo]:
        """Make a collection for the server's encoder; one that is there stays. `PUT …/{name}`

        `language` is whose stems and stop words keyword search knows; English when None.
        """
        body = None if language is None else _json({"language": language})
        answer = yield Request("PUT", _path(name), {}, body, writes=True)
        return reading.made(CollectionInfo, reading.content_of(answer))

    @operation
    def delete_collection(self, name: str) -> Flow[None]:
        """Delete a collection with everything in it. `DELETE /v1/collections/{name}`"""
        yield Request("DELETE", _path(name), writes=True)

    # ---- documents

    @operation
    def upsert(self, collection: str, documents: Iterable[Document | Mapping[str, Any]]) -> Flow[Written]:
        """Insert documents, or replace those of the same ids; durable and searchable on return.

        `documents` may be an iterator of any length: it is read as it is sent, in batches of at most 1000
        documents and about 4 MiB, each tried again by itself. A document that cannot be stored is left out
        and listed, by its number counted from 1; when none at all can be, InvalidDocument is raised.
        `PUT …/documents`
        """
        total = Written(0, 0, 0, 0, 0, [])
        for before, body in _batches(documents):
            try:
                answer = yield Request("PUT", _path(collection, "documents"), {}, body, NDJSON, writes=True)
                content = reading.content_of(answer)
            except InvalidDocument as error:  # of every line of this batch
                content = reading.written_before(error)
                if content is None:
                    raise
            total = _added(total, reading.made(Written, content), before)
        if total.refused and not total.inserted + total.updated + total.unchanged:
            raise InvalidDocument(
                f"none of {total.refused} documents can be stored; the first: {total.problems[0].detail}"
            )
        return total

    @operation
    def get(self, collection: str, id: str) -> Flow[Document]:
        """One document. `GET …/documents/{id}`"""
        answer = yield Request("GET", _path(collection, "documents", id))
        return reading.made(Document, reading.content_of(answer))

    @operation
    def delete(self, collection: str, id: str) -> Flow[Deleted]:
        """Delete one document; gone from every later search on return. `DELETE …/documents/{id}`"""
        answer = yield Request("DELETE", _path(collection, "documents", id), writes=True)
        return reading.made(Deleted, reading.content_of(answer))

    @operation
    def delete_many(
        self, collection: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
    ) -> Flow[Deleted]:
        """Delete the documents of these ids, or those that a filter finds. `POST …/documents/delete`"""
        asked = {"ids": None if ids is None else list(ids), "filter": filter}
        answer = yield replace(_post(collection, "documents/delete", asked), writes=True)
        return reading.made(Deleted, reading.content_of(answer))

    @operation
    def update_metadata(self, collection: str, id: str, changes: Mapping[str, Any]) -> Flow[Changed]:
        """Change part of a document's metadata (JSON Merge Patch, RFC 7396). `PATCH …/documents/{id}`"""
        body = _json({"metadata": changes})
        answer = yield Request("PATCH", _path(collection, "documents", id), {}, body, writes=True)
        return reading.made(Changed, reading.content_of(answer))

    @operation
    def documents(
        self,
        collection: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        filter: Filter | None = None,
    ) -> Flow[DocumentPage]:
        """Documents by id, from `next` of the page before on. `GET …/documents`"""
        asked: dict[str, str | int] = {"limit": limit}
        if cursor is not None:
            asked["cursor"] = cursor
        if filter is not None:
            asked["filter"] = _json(filter).decode()
        answer = yield Request("GET", _path(collection, "documents"), asked)
        return reading.made(DocumentPage, reading.content_of(answer))

    # ---- search

    @operation
    def search(self, collection: str, query: str, **options: Unpack[FindOptions]) -> Flow[SearchResult]:
        """The documents that a query attends to most; options: `FindOptions`. `POST …/search`"""
        answer = yield _post(collection, "search", {"query": query, **options})
        return reading.search_result(query, reading.content_of(answer))

    @operation
    def search_batch(
        self, collection: str, queries: Sequence[str], **options: Unpack[FindOptions]
    ) -> Flow[list[SearchResult]]:
        """Many queries, answered from one state. `POST …/search/batch`"""
        answer = yield _post(collection, "search/batch", {"queries": list(queries), **options})
        results = reading.content_of(answer)["results"]
        return [reading.search_result(query, one) for query, one in zip(queries, results, strict=True)]

    @operation
    def similar(
        self,
        collection: str,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        **options: Unpack[FindOptions],
    ) -> Flow[SearchResult]:
        """The documents most like some ids and least like others, themselves left out. `POST …/similar`"""
        asked = {"like": list(like), "unlike": list(unlike), "query": query, **options}
        answer = yield _post(collection, "similar", asked)
        return reading.search_result(query or "", reading.content_of(answer))

    @operation
    def facets(
        self, collection: str, fields: Sequence[str], *, filter: Filter | None = None, limit: int = 10
    ) -> Flow[Facets]:
        """How many documents have which values of these metadata fields. `POST …/facets`"""
        asked = {"fields": list(fields), "filter": filter, "limit": limit}
        answer = yield _post(collection, "facets", asked)
        return reading.made(Facets, reading.content_of(answer))

    @operation
    def feedback(self, collection: str, events: Sequence[Mapping[str, Any]]) -> Flow[Recorded]:
        """Tell what people clicked or judged; all of it is stored, or none. `POST …/feedback`

        Each event has `action_name` (click, purchase, thumbs_up, …), `object_id`, and `query_id` of a
        search's answer or `user_query`, its words; `event_id` and `client_id` if there are any.
        """
        body = _json([dict(event) for event in events])
        answer = yield Request("POST", f"{_path(collection)}/feedback", {}, body, writes=True)
        return reading.made(Recorded, reading.content_of(answer))

    # ---- attention

    @operation
    def attend(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        include: Sequence[Part] = (),
        certify: int | None = None,
        **options: Unpack[DifferentiableOptions],
    ) -> Flow[Attention]:
        """Attention itself: context, weights, scores and ids; options: `DifferentiableOptions`.

        Any number of queries: they are asked 64 at a time, all of one state. `POST …/attend`

        Args:
            collection: its name.
            queries: texts. With vectors they are the words for the keyword leg.
            vectors: query states [n, dimension], in place of what the encoder gives.
            include: "keys" and "values" of the candidates; "parts" of their scores by head; "slopes", how
                their dense scores move with the query state.
            certify: how many first places to certify.
            options: how they attend.
        """
        body = {**_plain(options), "include": list(include), "certify": certify}
        found: list[Attention] = []
        for part in parts_of(queries, vectors):
            answer = yield _post(collection, "attend", {**body, **part}, TENSORS)
            found.append(reading.attention(answer.content))
            body["stamp"], body["model"] = asdict(found[0].stamp), None
        return joined(found)

    @operation
    def vjp(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        context: Vectors | None = None,
        weights: Rows | None = None,
        scores: Rows | None = None,
        head: bool = True,
        **options: Unpack[DifferentiableOptions],
    ) -> Flow[Vjp]:
        """The gradients of a loss of what `attend` answered; asked as it was, with its stamp. `POST …/vjp`

        Args:
            collection: its name.
            queries: as for `attend`.
            vectors: as for `attend`.
            context: the loss's gradient in each context.
            weights: in the weights, a row of as many numbers as the query has candidates.
            scores: likewise in the scores.
            head: whether the gradients of the head are wanted.
            options: as for `attend`; `stamp` is required.

        Raises:
            Gone: the state was replaced since: attend again.
        """
        include = ["states", "head"] if head else ["states"]
        body = {**_plain(options), "include": include}
        given = {
            "grad_context": None if context is None else numbers(context),
            "grad_weights": None if weights is None else ragged(weights),
            "grad_scores": None if scores is None else ragged(scores),
        }
        found: list[Vjp] = []
        start = 0
        for part in parts_of(queries, vectors):
            stop = start + counted(part)
            gradients = {name: rows[start:stop] for name, rows in given.items() if rows is not None}
            answer = yield _post(collection, "vjp", {**body, **part, **gradients}, TENSORS)
            facts, tensors = reading.tensors_of(answer.content)
            of_head = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("head.")}
            found.append(Vjp(reading.made(Stamp, facts), tensors["states"], of_head))
            start = stop
        return joined_gradients(found)

    @operation
    def predict(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        field: str,
        evidence: int = 10,
        **options: Unpack[AttendOptions],
    ) -> Flow[Predictions]:
        """A field of the documents, pooled by the attention of each query (64 at most). `POST …/predict`"""
        asked = {"field": field, "evidence": evidence, **_plain(options)}
        asked |= {"queries": None if queries is None else list(queries)}
        asked |= {"vectors": None if vectors is None else numbers(vectors)}
        answer = yield _post(collection, "predict", asked)
        content = reading.content_of(answer)
        predictions = [reading.prediction(one) for one in content["results"]]
        return Predictions(reading.made(Stamp, content), predictions)

    # ---- models

    @operation
    def models(self, collection: str) -> Flow[Models]:
        """Every version with what is known of it; v0 is the untrained one. `GET …/models`"""
        answer = yield Request("GET", _path(collection, "models"))
        content = reading.content_of(answer)
        return Models(content["live"], [reading.made(Model, one) for one in content["models"]])

    @operation
    def promote(self, collection: str, version: str) -> Flow[Promoted]:
        """Let a version answer from now on; to undo it promote `previous`. `POST …/promote`"""
        answer = yield Request("POST", _path(collection, "models", version, "promote"), writes=True)
        return reading.made(Promoted, reading.content_of(answer))

    @operation
    def head(self, collection: str, version: str) -> Flow[dict[str, Any]]:
        """The tensors of a version's head, as NumPy arrays by name. `GET …/models/{version}/head`"""
        answer = yield Request("GET", _path(collection, "models", version, "head"), accept=TENSORS)
        return reading.tensors_of(answer.content)[1]

    @operation
    def add_model(
        self,
        collection: str,
        tensors: Mapping[str, Any],
        *,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> Flow[ModelAdded]:
        """Keep a head that was trained elsewhere as a new version, which is not live. `POST …/models`

        Args:
            collection: its name.
            tensors: named and shaped as `head` gives them.
            parent: the version that it was trained from; the live one when None.
            record: what should be known of it later, as JSON.
        """
        answer = yield Request(
            "POST",
            _path(collection, "models"),
            {} if parent is None else {"parent": parent},
            head_file(tensors, record),
            TENSORS,
            repeatable=False,
            writes=True,
        )
        return reading.made(ModelAdded, reading.content_of(answer))


def _path(*parts: str) -> str:
    """A collection's path. A part of dots alone would be taken for a step up, so dots are quoted, too."""
    return "/v1/collections/" + "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)


def _post(collection: str, route: str, body: Mapping[str, Any], accept: str = "application/json") -> Request:
    """A question: what is None is left out, and so is as the server has it."""
    given = {name: value for name, value in body.items() if value is not None}
    return Request("POST", f"{_path(collection)}/{route}", {}, _json(given), accept=accept)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    stamp = options.get("stamp")
    return {**options, "stamp": asdict(stamp)} if stamp is not None else dict(options)


def _json(content: Any) -> bytes:
    import orjson

    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        from dsearch.errors import InvalidRequest

        raise InvalidRequest(f"not JSON ({error}); give text, finite numbers, lists and objects") from None


def _batches(documents: Iterable[Document | Mapping[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """NDJSON bodies, and how many documents come before each; one at least."""
    lines: list[bytes] = []
    size = before = 0
    for document in documents:
        lines.append(_json(asdict(document) if isinstance(document, Document) else document))
        size += len(lines[-1])
        if len(lines) >= BATCH_DOCUMENTS or size >= BATCH_BYTES:
            yield before, b"\n".join(lines)
            before, lines, size = before + len(lines), [], 0
    if lines or not before:
        yield before, b"\n".join(lines)


def _added(total: Written, more: Written, before: int) -> Written:
    problems = [replace(problem, line=problem.line + before) for problem in more.problems]
    return Written(
        more.sequence,
        total.inserted + more.inserted,
        total.updated + more.updated,
        total.unchanged + more.unchanged,
        total.refused + more.refused,
        [*total.problems, *problems][:SHOWN_PROBLEMS],
    )
