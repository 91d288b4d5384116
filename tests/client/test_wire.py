"""How requests are divided and answers are put together, without a server."""

from __future__ import annotations

import io
import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dsearch.client import over_http
from dsearch.client.calls import Calls
from dsearch.client.wire import (
    BATCH_BYTES,
    BATCH_DOCUMENTS,
    QUERIES_AT_ONCE,
    SHOWN_PROBLEMS,
    TENSORS,
    HttpReply,
    RequestParts,
    added,
    batches,
    error_of,
    joined,
    joined_gradients,
    numbers,
    prediction,
    quoted,
    ragged,
    renumbered,
    tensor_batches,
    tensors_of,
    text_and_hint,
    written_before,
)
from dsearch.client.wire import attention as wire_attention
from dsearch.errors import Command, Conflict, DsearchError, Gone, InvalidRequest, Unavailable
from dsearch.results import Attention, Gradients, RefusedDocument, WriteResult
from dsearch.service.searching import attended_arrays, attended_facts
from dsearch.service.wire.json import tensors_answer
from dsearch.types import Document, Stamp

STAMP = Stamp(1, "v0", 7)


# ---- requests


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        ([1.0, 2.0], "no matrix"),
        ([[1.0], [1.0, 2.0]], "no matrix"),
        ([["x"]], "no matrix"),
        ([[float("inf")]], "not finite"),
    ],
)
def test_vectors_that_are_none_are_refused(vectors: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        numbers(vectors)
    assert numbers([[1, 2]]).dtype == np.float64
    assert [row.tolist() for row in ragged([[1 / 3], []])] == [[1 / 3], []]


def test_dots_and_slashes_are_quoted_in_paths() -> None:
    assert quoted("a/b") == "a%2Fb"
    assert quoted("..") == "%2E%2E"


@pytest.mark.parametrize("count", [0, 1, QUERIES_AT_ONCE, QUERIES_AT_ONCE + 1, 3 * QUERIES_AT_ONCE])
def test_every_query_is_in_one_part(count: int) -> None:
    queries = [str(number) for number in range(count)]
    states = np.arange(2.0 * count).reshape(count, 2)
    parts = list(RequestParts(queries, states))
    assert [query for part in parts for query in part["queries"]] == queries
    np.testing.assert_array_equal(np.concatenate([part["vectors"] for part in parts]), states)
    assert len(parts) == max(1, -(-count // QUERIES_AT_ONCE))
    assert all(part["queries"] is None for part in RequestParts(None, states))
    assert all(part["vectors"] is None for part in RequestParts(queries, None))


def test_a_part_that_is_too_large_is_halved_with_those_behind_it() -> None:
    error = InvalidRequest("large")
    error.code = "answer_too_large"
    parts = RequestParts([str(number) for number in range(10)], None)
    asked: list[list[str]] = []
    for part in parts:
        asked.append(part["queries"])
        if len(part["queries"]) > 3:
            parts.halve(error)
    sizes = [len(part) for part in asked]
    assert sizes == [10, 5, 2, 2, 2, 2, 2]
    assert [query for part in asked[2:] for query in part] == [str(number) for number in range(10)]
    alone = RequestParts(["q"], None)
    next(iter(alone))
    with pytest.raises(InvalidRequest):
        alone.halve(error)  # one query cannot be divided
    other = InvalidRequest("limit=0")
    two = RequestParts(["q", "r"], None)
    next(iter(two))
    with pytest.raises(InvalidRequest, match="limit=0"):
        two.halve(other)


def test_texts_and_vectors_of_other_numbers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="2 queries and 1 vector; give as many, or either alone"):
        RequestParts(["a", "b"], [[1.0]])


def test_documents_go_in_batches_by_number_and_by_bytes() -> None:
    refused: list[RefusedDocument] = []
    few = [Document(str(number), "x") for number in range(2 * BATCH_DOCUMENTS + 1)]
    sent = list(batches(few, refused.append))
    assert [numbers[0] for numbers, _ in sent] == [1, BATCH_DOCUMENTS + 1, 2 * BATCH_DOCUMENTS + 1]
    assert [body.count(b"\n") + 1 for _, body in sent] == [BATCH_DOCUMENTS, BATCH_DOCUMENTS, 1]
    long = [Document(str(number), "x" * (BATCH_BYTES // 2)) for number in range(5)]
    assert [numbers for numbers, _ in batches(long, refused.append)] == [[1, 2], [3, 4], [5]]
    assert list(batches([], refused.append)) == [([], b"")]
    assert len(list(batches(few[:BATCH_DOCUMENTS], refused.append))) == 1
    assert b"embedding" not in sent[0][1]
    assert not refused


def test_a_document_that_json_cannot_hold_is_refused_by_its_number() -> None:
    refused: list[RefusedDocument] = []
    documents = [Document("a", "x"), Document("b", "x", value=math.nan), Document("c", "x")]
    [(numbers, body)] = batches(documents, refused.append)
    assert numbers == [1, 3]
    assert body.count(b"\n") == 1
    assert [(one.line, one.code) for one in refused] == [(2, "invalid_document")]
    assert "'b'" in refused[0].detail


def test_embeddings_go_with_their_documents() -> None:
    count = BATCH_DOCUMENTS + 2
    documents = [Document(str(number), "x") for number in range(count)]
    rows = np.arange(count, dtype=np.float64)[:, None]
    sent = list(tensor_batches(documents, rows))
    assert [numbers[0] for numbers, _ in sent] == [1, BATCH_DOCUMENTS + 1]
    _, tensors = tensors_of(sent[1][1])
    assert tensors["embeddings"].tolist() == [[BATCH_DOCUMENTS], [BATCH_DOCUMENTS + 1]]
    assert tensors["embeddings"].dtype == np.float32
    with pytest.raises(InvalidRequest, match="1 embedding for 2 documents; give one each"):
        list(tensor_batches(documents[:2], rows[:1]))


# ---- answers


def attention(widths: list[int], *, heads: int = 2, values: int = 3) -> Attention:
    """An answer whose weights tell query and place."""
    most = max(widths)
    weights = np.zeros((len(widths), most))
    for row, width in enumerate(widths):
        weights[row, :width] = 1 + np.arange(width)
    by_head = np.repeat(weights[:, None], heads, 1)
    return Attention(
        ids=[[f"d{place}" for place in range(width)] for width in widths],
        stamp=STAMP,
        hops=1,
        temperature=0.5,
        mixture=np.full(heads, 1 / heads),
        context=np.ones((len(widths), 4)),
        weights=weights,
        scores=-weights,
        values=np.ones((len(widths), most, 2)) if values == 3 else np.ones((len(widths), heads, most, 2)),
        dense=by_head,
        slopes=np.ones((len(widths), heads, most, 5)),
        candidates=widths,
        positions=np.where(weights > 0, 7, -1),
        covered_mass=np.full(len(widths), 0.5),
        note=None if most < 3 else "few",
    )


def test_parts_are_joined_as_wide_as_the_widest() -> None:
    parts = [attention([1, 2]), attention([3]), attention([0])]
    whole = joined(parts)
    assert whole.ids == [["d0"], ["d0", "d1"], ["d0", "d1", "d2"], []]
    assert whole.weights.tolist() == [[1, 0, 0], [1, 2, 0], [1, 2, 3], [0, 0, 0]]
    assert whole.positions is not None
    assert whole.positions.tolist() == [[7, -1, -1], [7, 7, -1], [7, 7, 7], [-1, -1, -1]]
    assert whole.dense is not None
    assert whole.slopes is not None
    assert whole.values is not None
    assert (whole.dense.shape, whole.slopes.shape) == ((4, 2, 3), (4, 2, 3, 5))
    assert (whole.values.shape, whole.context.shape) == ((4, 3, 2), (4, 4))
    assert (whole.candidates, whole.note) == ([1, 2, 3, 0], "few")
    assert whole.mixture.shape == (2,)
    assert whole.stamp is STAMP
    assert joined(parts[:1]) is parts[0]


def everything() -> Attention:
    """An answer to three queries with each of its parts, all of them different."""
    shapes = {
        "covered_mass": (3,),
        **dict.fromkeys(("context", "output"), (3, 4)),
        **dict.fromkeys(("weights", "scores", "memory", "mixtures"), (3, 2)),
        **dict.fromkeys(("dense", "keyword", "head_weights"), (3, 2, 2)),
        **dict.fromkeys(("keys", "values"), (3, 2, 4)),
        "slopes": (3, 2, 2, 5),
    }
    arrays: Any = {
        name: place + np.arange(np.prod(shape)).reshape(shape)
        for place, (name, shape) in enumerate(shapes.items(), start=1)
    }
    answer = Attention(
        ids=[["a", "b"], ["c", "d"], ["e", "f"]],
        stamp=Stamp(3, "v9", 7),
        hops=2,
        temperature=0.25,
        mixture=np.array([0.25, 0.75]),
        candidates=[5, 6, 7],
        note="few",
        draft="d1",
        positions=np.arange(6).reshape(3, 2),
        texts=[["A", "B"], ["C", "D"], ["E", "F"]],
        **{name: array.astype(np.float64) for name, array in arrays.items()},
    )
    assert all(getattr(answer, field.name) is not None for field in fields(Attention))
    return answer


def test_each_part_of_attention_comes_over_the_wire() -> None:
    """Written by the service, read by the clients: fields of the declaration, each by its name."""
    sent = everything()
    content = bytes(tensors_answer(attended_arrays(sent), attended_facts(sent)).body)
    received = wire_attention(content)
    for field in fields(Attention):
        np.testing.assert_array_equal(getattr(received, field.name), getattr(sent, field.name), field.name)


def test_each_part_of_attention_is_joined_in_the_order_of_the_queries() -> None:
    whole = everything()

    def of(queries: slice) -> Attention:
        parts = {field.name: getattr(whole, field.name) for field in fields(Attention)}
        by_query = {
            name: part[queries]
            for name, part in parts.items()
            if isinstance(part, np.ndarray | list) and name != "mixture"
        }
        return replace(whole, **by_query)

    again = joined([of(slice(0, 1)), of(slice(1, 3))])
    for field in fields(Attention):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(whole, field.name), field.name)


def test_labels_of_a_prediction_are_named_by_what_they_are_and_a_number_has_none() -> None:
    none = dict.fromkeys(("kind", "mean", "spread", "labels"))
    counts = {"candidates": 0, "without_field": 0, "covered_mass": 1.0}
    content = {**none, **counts, "evidence": [], "values": "stored"}
    assert prediction(content).labels is None
    labels = [{"label": True, "share": 0.75}, {"label": "true", "share": 0.25}]
    assert prediction({**content, "labels": labels}).labels == {True: 0.75, "true": 0.25}


def test_vectors_are_by_head_in_all_parts_if_in_any() -> None:
    whole = joined([attention([2]), attention([2], values=4)])
    assert whole.values is not None
    assert whole.values.shape == (2, 2, 2, 2)


def test_gradients_are_stacked_by_state_and_added_by_parameter() -> None:
    one = Gradients(STAMP, np.ones((2, 3)), {"w": np.array([1.0, 2.0])}, np.array([1.0, 0.0]))
    other = replace(one, states=np.zeros((1, 3)), head={"w": np.array([10.0, 20.0])})
    whole = joined_gradients([one, other])
    assert whole.states.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert whole.head["w"].tolist() == [11, 22]
    assert whole.bias is not None
    assert whole.bias.tolist() == [2, 0]
    assert joined_gradients([replace(one, bias=None)]).bias is None
    one, other = replace(one, table=np.ones((2, 1))), replace(other, table=np.zeros((2, 1)))
    assert joined_gradients([one, other]).table.tolist() == [[1], [1]]  # type: ignore[union-attr]


def test_writes_are_added_and_problems_count_all_documents_before() -> None:
    problem = RefusedDocument(line=3, code="invalid_document", detail="no id")
    one = WriteResult(5, 1, 2, 3, 1, [problem])
    later = WriteResult(9, 10, 20, 30, 2, [problem, replace(problem, line=1)])
    total = added(one, renumbered(later, range(1001, 1004)))
    assert replace(total, problems=[]) == WriteResult(9, 11, 22, 33, 3, [])
    assert [each.line for each in total.problems] == [3, 1001, 1003]
    many = replace(one, problems=[problem] * SHOWN_PROBLEMS)
    assert added(many, one).problems == [problem] * SHOWN_PROBLEMS


@pytest.mark.parametrize("content", [b"", b"no tensors", save({"a": np.ones(2)})[:-3]])
def test_an_answer_that_is_no_tensors_says_so(content: bytes) -> None:
    with pytest.raises(Unavailable, match="an answer that is not safetensors"):
        tensors_of(content)
    assert tensors_of(save({"a": np.ones(2)}))[0] is None


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "conflict", Conflict),
        (409, "unheard_of", Conflict),
        (410, "unheard_of", Gone),
        (429, "unheard_of", Unavailable),
        (503, "unheard_of", Unavailable),
        (400, "unheard_of", InvalidRequest),
        (499, "unheard_of", InvalidRequest),
        (500, "unheard_of", DsearchError),
    ],
)
def test_an_error_is_of_the_class_of_its_code_or_of_the_nearest(
    status: int, code: str, kind: type[DsearchError]
) -> None:
    content = json.dumps({"code": code, "detail": "why", "written": {"inserted": 3}}).encode()
    error = error_of(HttpReply(status, {}, content))
    assert type(error) is kind
    assert (error.code, error.status, str(error)) == (code, status, "why")
    assert written_before(error) == {"inserted": 3}


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"detail": "no code"}', b'{"code": "gone"}'])
def test_an_error_without_a_problem_document_says_its_status(content: bytes) -> None:
    error = error_of(HttpReply(502, {}, content))
    assert isinstance(error, Unavailable)
    assert str(error) == "status 502, and no problem document to say why"
    assert written_before(error) is None


def test_the_command_of_a_hint_is_not_said_twice() -> None:
    hint = {"name": "keys create", "arguments": ["--name", "NAME"]}
    command = Command("keys create", ("--name", "NAME"))
    assert text_and_hint({"detail": f"no key; make one with: {command}", "hint": hint}) == (
        "no key; make one",
        command,
    )
    assert text_and_hint({"detail": "why"}) == ("why", None)


# ---- calls


def test_a_function_judges_against_the_live_version(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(over_http, "upload_of", lambda *_: None)
    monkeypatch.setattr(over_http, "evidence_by", lambda *given: compared.append(given[3]()))
    monkeypatch.setattr(over_http, "model_file", lambda *_: io.BytesIO(b"file"))
    monkeypatch.setattr(over_http, "clean_up", lambda _: None)
    flow: Any = over_http.flow_of(Calls.save_model.request("papers", {}, evidence=lambda _: [1.0]))
    assert next(flow).path == "/v1/collections/papers/models"
    sent = flow.send(HttpReply(200, {}, json.dumps({"live": "v3", "models": []}).encode()))
    assert compared == ["v3"]
    assert (sent.path, sent.content.read()) == ("/v1/collections/papers/models/save", b"file")
    assert (sent.repeatable, sent.writes, sent.content_type) == (False, True, TENSORS)
