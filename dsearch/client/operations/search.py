"""The calls that search and attend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

from dsearch.client import wire
from dsearch.client.flow import TENSORS, Flow, Request, operation
from dsearch.client.options import AttendOptions, DifferentiableOptions, Filter, FindOptions, Part
from dsearch.client.wire import (
    RequestParts,
    joined,
    joined_gradients,
    json_of,
    numbers,
    one_vector,
    path_of,
    plain,
    question,
    ragged,
)
from dsearch.errors import InvalidRequest
from dsearch.results import (
    Attention,
    Facets,
    Gradients,
    Predictions,
)
from dsearch.types import (
    FeedbackResult,
    OwnJudgements,
    QueriesToJudge,
    SearchResult,
    Stamp,
)

if TYPE_CHECKING:
    from dsearch.client.wire import Rows, Vectors


class SearchOperations:
    """Search, attention and what people make of what was found."""

    @operation
    def search(
        self,
        collection: str,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[FindOptions],
    ) -> Flow[SearchResult]:
        """Search for the documents that a query attends to most; options: `FindOptions`. `POST …/search`

        Args:
            collection: its name.
            query: text.
            vector: takes the place of the text's embedding; without a text the search is dense.
            options: described by `SearchOptions`.
        """
        body = {"query": query, "vector": one_vector(vector), **options}
        answer = yield question(collection, "search", body)
        return wire.search_result(query or "", wire.content_of(answer))

    @operation
    def search_batch(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        **options: Unpack[FindOptions],
    ) -> Flow[list[SearchResult]]:
        """Search with many queries, or vectors in their place, in one state. `POST …/search/batch`"""
        states = None if vectors is None else numbers(vectors)
        body = {"queries": None if queries is None else list(queries), "vectors": states, **options}
        answer = yield question(collection, "search/batch", body)
        results = wire.content_of(answer)["results"]
        texts = [""] * len(results) if queries is None else queries
        return [wire.search_result(query, answer) for query, answer in zip(texts, results, strict=True)]

    @operation
    def similar(
        self,
        collection: str,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        vector: Sequence[float] | None = None,
        **options: Unpack[FindOptions],
    ) -> Flow[SearchResult]:
        """Search by example: documents like some ids and unlike others, without these. `POST …/similar`"""
        body = {"like": list(like), "unlike": list(unlike), "query": query, **options}
        body["vector"] = one_vector(vector)
        answer = yield question(collection, "similar", body)
        return wire.search_result(query or "", wire.content_of(answer))

    @operation
    def facets(
        self, collection: str, fields: Sequence[str], *, filter: Filter | None = None, limit: int = 10
    ) -> Flow[Facets]:
        """Count the documents with each value of these metadata fields. `POST …/facets`"""
        body = {"fields": list(fields), "filter": filter, "limit": limit}
        answer = yield question(collection, "facets", body)
        return wire.parse(Facets, wire.content_of(answer))

    @operation
    def feedback(self, collection: str, events: Sequence[Mapping[str, Any]]) -> Flow[FeedbackResult]:
        """Record clicks and judgements, all of them or none. `POST …/feedback`

        Each event has `action_name` (click, purchase, thumbs_up, …), `object_id`, and `query_id` of a
        search's answer or `user_query`, its words; `event_id` and `client_id` if there are any.
        """
        body = json_of([dict(event) for event in events])
        answer = yield Request("POST", f"{path_of(collection)}/feedback", {}, body, writes=True)
        return wire.parse(FeedbackResult, wire.content_of(answer))

    @operation
    def own_judgements(self, collection: str, *, client_id: str | None = None) -> Flow[OwnJudgements]:
        """Return the opinions sent with this key or `client_id` as judgements. `GET …/judgements`"""
        query = {} if client_id is None else {"client_id": client_id}
        answer = yield Request("GET", f"{path_of(collection)}/judgements", query)
        return wire.parse(OwnJudgements, wire.content_of(answer))

    @operation
    def queries_to_judge(
        self,
        collection: str,
        *,
        version: str | None = None,
        limit: int = 10,
        client_id: str | None = None,
    ) -> Flow[QueriesToJudge]:
        """Return queries on which two versions differ most. `GET …/judgements/next`

        Args:
            collection: its name.
            version: version to compare with the live one; the latest other one when None.
            limit: number of queries, at most 100.
            client_id: whose judged queries are left out.
        """
        parameters = {"version": version, "limit": limit, "client_id": client_id}
        query = {name: value for name, value in parameters.items() if value is not None}
        answer = yield Request("GET", f"{path_of(collection)}/judgements/next", query)
        return wire.parse(QueriesToJudge, wire.content_of(answer))

    @operation
    def report_outcome(
        self,
        collection: str,
        episode: str,
        *,
        useful_ids: Sequence[str] = (),
        success: bool,
        client_id: str = "",
    ) -> Flow[FeedbackResult]:
        """Record how a task ended, named by `episode` in its searches and in `get`. `POST …/outcomes`

        Args:
            collection: that was searched.
            episode: name of the task.
            useful_ids: documents that helped; without any, all that were read count alike.
            success: whether the task succeeded.
            client_id: user or run that the agent works for.
        """
        body = json_of(
            {"episode": episode, "useful_ids": list(useful_ids), "success": success, "client_id": client_id}
        )
        answer = yield Request("POST", f"{path_of(collection)}/outcomes", {}, body, writes=True)
        return wire.parse(FeedbackResult, wire.content_of(answer))

    @operation
    def attend(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        include: Sequence[Part] = (),
        **options: Unpack[DifferentiableOptions],
    ) -> Flow[Attention]:
        """Compute attention: context, weights, scores and ids; options: `DifferentiableOptions`.

        Any number of queries: they are sent 64 at a time, or fewer where their answer is too large, all of
        one state. `POST …/attend`

        Args:
            collection: its name.
            queries: texts. With vectors they are the words for the keyword leg.
            vectors: query states [n, dimension], in place of what the encoder gives.
            include: "keys", "values", "positions" and "texts" of the candidates; "parts" of their scores by
                head; "slopes", how their dense scores move with the query state.
            options: how they attend.
        """
        body = {**plain(options), "include": list(include)}
        parts, answers = RequestParts(queries, vectors), list[Attention]()
        for part in parts:
            try:
                answer = yield question(collection, "attend", {**body, **part}, TENSORS)
            except InvalidRequest as error:
                parts.halve(error)
                continue
            answers.append(wire.attention(answer.content))
            body["stamp"], body["model"] = asdict(answers[0].stamp), None
        return joined(answers)

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
    ) -> Flow[Gradients]:
        """Differentiate an answer of `attend`: the same request, with its stamp. `POST …/vjp`

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
        table = [] if options.get("table") is None else ["table"]
        include = ["states", "bias", *table, *(["head"] if head else [])]
        body = {**plain(options), "include": include}
        request = {
            "grad_context": None if context is None else numbers(context),
            "grad_weights": None if weights is None else ragged(weights),
            "grad_scores": None if scores is None else ragged(scores),
        }
        parts, answers = RequestParts(queries, vectors), list[Gradients]()
        for part in parts:
            gradients = {name: rows[parts.place] for name, rows in request.items() if rows is not None}
            try:
                answer = yield question(collection, "vjp", {**body, **part, **gradients}, TENSORS)
            except InvalidRequest as error:
                parts.halve(error)
                continue
            facts, tensors = wire.tensors_of(answer.content)
            of_head = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("head.")}
            stamp = wire.parse(Stamp, facts)
            of_inputs = {name: tensors.get(name) for name in ("bias", "table")}
            answers.append(Gradients(stamp, tensors["states"], of_head, **of_inputs))
        return joined_gradients(answers)

    @operation
    def predict(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        ids: Sequence[str] | None = None,
        field: str,
        evidence: int = 10,
        **options: Unpack[AttendOptions],
    ) -> Flow[Predictions]:
        """Predict a field of the documents, pooled by attention, for up to 64 queries. `POST …/predict`

        Args:
            collection: its name.
            queries: texts; give these, vectors or ids.
            vectors: as for `attend`.
            ids: documents whose embeddings are the queries.
            field: number, string, boolean or vector of the metadata by its dotted path, or value.
            evidence: documents of largest weight to show with each prediction.
            options: how they attend.
        """
        body = {"field": field, "evidence": evidence, **plain(options)}
        body |= {"ids": None if ids is None else list(ids)}
        body |= {"queries": None if queries is None else list(queries)}
        body |= {"vectors": None if vectors is None else numbers(vectors)}
        answer = yield question(collection, "predict", body)
        content = wire.content_of(answer)
        predictions = [wire.prediction(answer) for answer in content["results"]]
        return Predictions(wire.parse(Stamp, content), predictions, content.get("note"))
