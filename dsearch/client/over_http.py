"""A call over HTTP: the requests that carry it out, and its result from the replies.

Most calls are one request, which follows from their declaration. Those with tensors, files or several
requests have a flow of their own, in `FLOWS`; those whose answer is shaped otherwise a reader, in `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from math import inf
from types import NoneType
from typing import Any, TypeVar

from dsearch import operations
from dsearch.client import wire
from dsearch.client.uploads import (
    clean_up,
    evidence_by,
    form_of,
    kept_version,
    model_file,
    named_files,
    savable_layer,
    upload_of,
    verdict_options,
)
from dsearch.client.wire import (
    NDJSON,
    TENSORS,
    Flow,
    HttpReply,
    Pause,
    Request,
    RequestParts,
    added,
    batches,
    head_file,
    joined,
    joined_gradients,
    json_of,
    numbers,
    one_vector,
    plain,
    quoted,
    ragged,
    renumbered,
    tensor_batches,
)
from dsearch.errors import InvalidDocument, InvalidRequest, Unavailable, amount
from dsearch.jobs import ExampleScores
from dsearch.operations import Call
from dsearch.results import CollectionInfo, Gradients, Predictions, RefusedDocument, Task, WriteResult
from dsearch.types import SearchResult, Stamp

T = TypeVar("T")


def flow_of(call: Call[T]) -> Flow[T]:
    """Return the flow that carries out a call."""
    flow = FLOWS.get(type(call))
    return _single(call) if flow is None else flow(call)


def _single(call: Call[T]) -> Flow[T]:
    reply = yield request_of(call)
    return result_of(call, reply)


def request_of(call: Call[Any], content: Any = None, content_type: str | None = None) -> Request:
    """Return the request of a call; its fields are in the path, the query and the body, as declared.

    Args:
        call: what is asked.
        content: the body, where it is no JSON of the fields.
        content_type: media type of this body.

    Raises:
        InvalidRequest: something that JSON does not have.
    """
    place = call.place
    values = _values(call)
    path = place.template.format(**{name: quoted(values.pop(name)) for name in place.in_path})
    query = {name: values.pop(name) for name in place.query if name in values}
    if content is None and _has_body(call):
        error = InvalidDocument if isinstance(call, operations.UpdateMetadata) else InvalidRequest
        content = json_of(values, error) if values or place.method == "POST" else None
    request = Request(
        place.method,
        path,
        {
            name: json_of(value).decode() if isinstance(value, Mapping) else value
            for name, value in query.items()
        },
        content,
        repeatable=place.repeatable,
        writes=place.writes,
    )
    return request if content_type is None else replace(request, content_type=content_type)


_ARRAYS: dict[str, Callable[[Any], Any]] = {"vector": one_vector, "vectors": numbers}


def _values(call: Call[Any]) -> dict[str, Any]:
    """The fields of a call by their names in JSON, without what is None."""
    values: dict[str, Any] = {}
    for name, value in call.arguments().items():
        if name == "options":
            values |= plain(value)
        elif value is not None:
            values[name] = _ARRAYS.get(name, _listed)(value)
    renamed = call.place.renamed
    return {renamed.get(name, name): value for name, value in values.items() if value is not None}


def _listed(value: Any) -> Any:
    """A list of any other iterable; JSON has what is none of them as it is."""
    if isinstance(value, str | bytes | Mapping | list) or not isinstance(value, Iterable):
        return value
    return list(value)  # type: ignore[reportUnknownVariableType]


def _has_body(call: Call[Any]) -> bool:
    place = call.place
    return place.method not in ("GET", "DELETE") and bool(
        call.arguments().keys() - {*place.in_path, *place.query}
    )


def result_of(call: Call[T], reply: HttpReply) -> T:
    """Return the result of a call from its reply.

    Raises:
        Unavailable: something else than dsearch has answered.
    """
    if call.result is NoneType:
        return None  # type: ignore[return-value]
    content = wire.content_of(reply)
    reader = READERS.get(type(call))
    return wire.parse(call.result, content) if reader is None else reader(call, content)


# ---- answers of another shape


def _collections(_: Any, content: Any) -> list[CollectionInfo]:
    return [wire.parse(CollectionInfo, entry) for entry in content["collections"] if "problem" not in entry]


def _found(call: operations.Search | operations.FindSimilar, content: Any) -> SearchResult:
    return wire.search_result(call.query or "", content)


def _found_for_each(call: operations.SearchBatch, content: Any) -> list[SearchResult]:
    results = content["results"]
    texts = [""] * len(results) if call.queries is None else call.queries
    return [wire.search_result(query, answer) for query, answer in zip(texts, results, strict=True)]


def _predictions(_: Any, content: Any) -> Predictions:
    predictions = [wire.prediction(answer) for answer in content["results"]]
    return Predictions(wire.parse(Stamp, content), predictions, content.get("note"))


READERS: dict[type[Call[Any]], Callable[[Any, Any], Any]] = {
    operations.Ready: lambda _, content: content["status"] == "ready",
    operations.ListCollections: _collections,
    operations.ListAliases: lambda _, content: content["aliases"],
    operations.ReadStatistics: lambda _, content: content,
    operations.Search: _found,
    operations.FindSimilar: _found,
    operations.SearchBatch: _found_for_each,
    operations.Predict: _predictions,
}


# ---- calls with tensors, files, or several requests


def _upsert(call: operations.Upsert) -> Flow[WriteResult]:
    total = WriteResult(0, 0, 0, 0, 0, [])

    def refuse(problem: RefusedDocument) -> None:
        nonlocal total
        total = added(total, WriteResult(total.sequence, 0, 0, 0, 1, [problem]))

    parts, kind = batches(call.documents, refuse), NDJSON
    if call.embeddings is not None:
        parts, kind = tensor_batches(call.documents, call.embeddings), TENSORS
    bare = replace(call, documents=(), embeddings=None)
    for lines, body in parts:
        try:
            content = wire.content_of((yield request_of(bare, body, kind)))
        except InvalidDocument as error:  # of every line of this batch
            content = wire.written_before(error)
            if content is None:
                raise
        total = added(total, renumbered(wire.parse(WriteResult, content), lines))
    if total.refused and not total.inserted + total.updated + total.unchanged:
        raise InvalidDocument(
            f"none of {amount(total.refused, 'document')} can be stored; the first: "
            f"{total.problems[0].detail}"
        )
    return total


def _feedback(call: operations.RecordFeedback) -> Flow[Any]:
    events = json_of([dict(event) for event in call.events])
    reply = yield request_of(replace(call, events=()), events)
    return result_of(call, reply)


def _attend(call: operations.Attend) -> Flow[Any]:
    options, parts, answers = dict(call.options), RequestParts(call.queries, call.vectors), list[Any]()
    for part in parts:
        asked = replace(call, **part, options=options)
        try:
            reply = yield replace(request_of(asked), accept=TENSORS)
        except InvalidRequest as error:
            parts.halve(error)
            continue
        answers.append(wire.attention(reply.content))
        options = {**options, "stamp": answers[0].stamp, "model": None}
    return joined(answers)


def _vjp(call: operations.Differentiate) -> Flow[Gradients]:
    table = [] if call.options.get("table") is None else ["table"]
    include = ["states", "bias", *table, *(["head"] if call.head else [])]
    given = {
        "grad_context": None if call.context is None else numbers(call.context),
        "grad_weights": None if call.weights is None else ragged(call.weights),
        "grad_scores": None if call.scores is None else ragged(call.scores),
    }
    parts, answers = RequestParts(call.queries, call.vectors), list[Gradients]()
    for part in parts:
        gradients = {name: rows[parts.place] for name, rows in given.items() if rows is not None}
        body = {**plain(call.options), "include": include, **part, **gradients}
        content = json_of({name: value for name, value in body.items() if value is not None})
        try:
            reply = yield replace(request_of(replace(call, options={}), content), accept=TENSORS)
        except InvalidRequest as error:
            parts.halve(error)
            continue
        facts, tensors = wire.tensors_of(reply.content)
        of_head = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("head.")}
        of_inputs = {name: tensors.get(name) for name in ("bias", "table")}
        answers.append(Gradients(wire.parse(Stamp, facts), tensors["states"], of_head, **of_inputs))
    return joined_gradients(answers)


def _head(call: Call[dict[str, Any]]) -> Flow[dict[str, Any]]:
    reply = yield replace(request_of(call), accept=TENSORS)
    return wire.tensors_of(reply.content)[1]


def _head_sent(call: operations.AddDraft | operations.AddModel) -> Flow[Any]:
    record = call.record if isinstance(call, operations.AddModel) else None
    reply = yield request_of(call, head_file(call.tensors, record), TENSORS)
    return result_of(call, reply)


def _add_files(call: operations.AddFiles) -> Flow[Task]:
    with form_of(named_files(call.files)) as (form, content_type):
        reply = yield request_of(replace(call, files=None), form, content_type)
    return result_of(call, reply)


def _wait_for_task(call: operations.WaitForTask) -> Flow[Task]:
    waited_s, asked = 0.0, operations.ReadTask(call.id)
    while True:
        task = yield from flow_of(asked)
        if call.on_progress is not None:
            call.on_progress(task)
        if task.has_ended:
            return task
        if waited_s >= call.timeout_s:
            raise Unavailable(
                f"task {call.id} is {task.state} after {call.timeout_s:g} s; wait longer, or cancel it"
            )
        yield Pause(call.every_s)
        waited_s += call.every_s


def _save_model(call: operations.SaveModel) -> Flow[Task]:
    layer, evidence = savable_layer(call.layer), call.evidence
    upload, live = upload_of(layer, call.encoder, call.parent), ""
    if callable(evidence):
        live = (yield from flow_of(operations.ListModels(call.collection))).live
    pending = kept_version(layer, call.evidence, call.measure, call.options)
    if pending is not None:
        before = pending.scores_of_live(live)
        kept = {**call.options, "promote": False, "accept": False}
        unjudged = replace(call, layer=layer, evidence=None, measure=None, options=kept)
        task = yield from flow_of(unjudged)
        task = yield from flow_of(operations.WaitForTask(task.id, timeout_s=inf))
        if task.state != "done" or task.result is None:
            return task
        version = task.result["model"]
        try:
            scores = ExampleScores(before, pending.scores(version), pending.measure, live)
        except BaseException:  # nobody else knows of the version
            yield from flow_of(operations.DeleteModel(call.collection, version))
            raise
        verdict = operations.JudgeModel(
            call.collection, version, scores, options=verdict_options(call.options)
        )
        return (yield from flow_of(verdict))
    report = evidence_by(layer, call.evidence, call.measure, lambda: live)
    with model_file(upload, report, call.record, call.options) as body:
        bare = operations.SaveModel(call.collection, None)
        reply = yield request_of(bare, body, TENSORS)
    clean_up(layer)
    return result_of(call, reply)


def _judge_model(call: operations.JudgeModel) -> Flow[Task]:
    body = {**asdict(call.evidence), **call.options}
    content = json_of({name: value for name, value in body.items() if value is not None})
    reply = yield request_of(call, content)
    return result_of(call, reply)


FLOWS: dict[type[Call[Any]], Callable[[Any], Flow[Any]]] = {
    operations.Upsert: _upsert,
    operations.RecordFeedback: _feedback,
    operations.Attend: _attend,
    operations.Differentiate: _vjp,
    operations.ReadHead: _head,
    operations.ReadDraft: _head,
    operations.AddDraft: _head_sent,
    operations.AddModel: _head_sent,
    operations.AddFiles: _add_files,
    operations.WaitForTask: _wait_for_task,
    operations.SaveModel: _save_model,
    operations.JudgeModel: _judge_model,
}
