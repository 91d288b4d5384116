"""The clients with what they ask replaced by a recorder: of requests, or of the calls of an engine."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import MagicMock
from zlib import crc32

import httpx2
import numpy as np
import pytest
import safetensors.numpy
from support.cli.recorder import MADE_UP, plain
from torch import Tensor, nn

from dsearch.attention.retrieval.head import Head
from dsearch.client import AsyncClient, Client, LocalEngine
from dsearch.client.calls import Calls
from dsearch.client.flow import JSON, NDJSON
from dsearch.engine import head_tensors
from dsearch.errors import InvalidRequest
from dsearch.jobs import EvaluationJob, ExampleScores, SavingJob, TrainingJob, TuningJob
from dsearch.store import CheckedDocuments
from dsearch.types import Stamp

URL = "http://search.example"
OPERATIONS = [name for name in dir(Calls) if not name.startswith("_")]
WORK = {  # what does the work of an engine in this process, by the module that it is looked up in
    "dsearch.client.local.documents": ("embedding_problems", "statistics"),
    "dsearch.client.local.engine": ("calls",),
    "dsearch.client.local.models": ("calls",),
    "dsearch.client.local.search": ("impression_of",),
    "dsearch.client.local.tasks": ("compact_collection", "store_files"),
    "dsearch.engine.search.gradients": ("attention_parts", "vjp"),
    "dsearch.training": (
        *("judge_version", "remember", "run_evaluation", "run_training", "run_tuning", "save_model"),
        *("scores_by", "summary"),
    ),
    "dsearch.training.judging": ("own_judgements", "queries_to_judge"),
}
HEAD = {name: tensor.numpy() for name, tensor in head_tensors(Head(4)).items()}
GIVEN: dict[str, Any] = {
    "dtype": "float64",
    "filter": {"year": 1937},
    "highlight_by": "meaning",
    "hops": 3,
    "include": ["keys"],
    "mode": "dense",
    "over": "all",
    "passages": {"tokens": 1937, "overlap": 3},
    "pooling": "hard",
    "score": "cosine",
    "stages": 2,
    "stamp": Stamp(1937, "v9", 7),
}
"""Values of which others are refused; the others follow from the type."""
ARRAYS = {
    **dict.fromkeys(("bias", "vector"), 1),
    **dict.fromkeys(("context", "embeddings", "rewards", "scores", "table", "vectors", "weights"), 2),
}
"""Dimensions of what is given as numbers."""
NAMES = ("Mapping[str, Mapping[str, float]]", "Mapping[str, Sequence[str]]", "Mapping[str, str]")


def parameters_of(name: str) -> dict[str, tuple[Any, bool]]:
    """Type and necessity of each parameter of an operation, the keyword arguments of `**options` too."""
    function = inspect.unwrap(getattr(Calls, name))
    every: dict[str, tuple[Any, bool]] = {}
    for parameter in [*inspect.signature(function).parameters.values()][1:]:
        if parameter.kind != parameter.VAR_KEYWORD:
            every[parameter.name] = parameter.annotation, parameter.default is parameter.empty
            continue
        declaration = function.__globals__[parameter.annotation.removeprefix("Unpack[").removesuffix("]")]
        every |= {keyword: (kind, False) for keyword, kind in get_type_hints(declaration).items()}
    return every


def made_up(name: str, kind: Any, *, default: object = None, word: str = MADE_UP) -> tuple[Any, Any]:
    """A value of a type, and what of it must arrive; None: only a difference."""
    text = f"{word}{name}"
    number = (1 + crc32(text.encode()) % 1000) / 1024  # as it is in float32, too
    described = str(kind).replace("collections.abc.", "").replace("typing.", "")
    if name in GIVEN:
        value = GIVEN[name]
        return value, 1937 if "1937" in repr(value) else value[0] if isinstance(value, list) else value
    if name in ARRAYS:
        return ([number] if ARRAYS[name] == 1 else [[number]]), number
    if name == "files":
        return {text: __file__}, text
    if name in ("tensors", "layer"):
        return {**HEAD, "key_delta": np.full((4, 4), number, np.float32)}, number
    if name == "with_head":
        return {text: [[number]]}, number
    if name in ("documents", "events"):
        return [{"id": text, "text": "x"} if name == "documents" else {"event_id": text}], text
    if "ExampleScores" in described:
        return ExampleScores([0.5], [0.25], text), text
    for choices in (kind, *get_args(kind)):
        if get_origin(choices) is Literal:
            chosen = next(choice for choice in reversed(get_args(choices)) if choice != default)
            return chosen, chosen
    shapes = {
        "Mapping[str, Mapping[": {text: {text: 1.0}},
        "Mapping[str, Sequence[": {text: [text]},
        "Mapping[str, str]": {text: text},
        "Mapping[str, Any]": {text: 1},
        "Sequence[Mapping[": [{"model": text}],
        "Sequence[str]": [text],
    }
    for shape, value in shapes.items():
        if described.startswith(shape):
            return value, text
    if kind is bool or described.startswith("bool"):
        return default is not True, None
    if kind is int or described.startswith("int"):
        return 7, 7
    if kind is float or described.startswith("float"):
        return number, number
    return text, text


def arrays(value: Any) -> Any:
    """Like `plain`, with the numbers of arrays and tensors."""
    if isinstance(value, np.ndarray | Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return [[str(key), arrays(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [arrays(item) for item in value]
    if hasattr(type(value), "__dataclass_fields__"):
        return [[name, arrays(getattr(value, name))] for name in type(value).__dataclass_fields__]
    if isinstance(value, CheckedDocuments):
        return [arrays(document) for document in value]
    if isinstance(value, nn.Module):
        return arrays(value.state_dict())
    if isinstance(value, bytes):
        told, tensors = in_safetensors(value)
        return [arrays(told), arrays(tensors)]
    return plain(value)


Answer = Callable[[httpx2.Request], httpx2.Response]


def refused(request: httpx2.Request) -> httpx2.Response:
    """The answer that ends a call once its request was seen."""
    return httpx2.Response(400, json={"code": "conflict", "detail": "enough"})


def sent(request: httpx2.Request) -> list[Any]:
    """All that a request says."""
    content: Any = request.read()
    kind, _, boundary = request.headers.get("content-type", "").partition("; boundary=")
    if boundary:  # another one in each request
        content = content.replace(boundary.encode(), b"boundary").decode().split("\r\n")
    if kind == NDJSON:
        content = [json.loads(line) for line in content.splitlines()]
    elif kind == JSON:
        content = json.loads(content)
    query = {
        name: json.loads(text) if text.isdigit() or text.startswith("{") else text
        for name, text in request.url.params.items()
    }
    headers = {name: request.headers.get(name) for name in ("accept", "x-timeout-ms", "authorization")}
    url = str(request.url.copy_with(query=None))
    return arrays([request.method, url, query, headers, kind, content])


def in_safetensors(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and tensors of a body; nothing of one that is empty."""
    if not content:
        return {}, {}
    size = int.from_bytes(content[:8], "little")
    told = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    tensors = sorted(safetensors.numpy.load(content).items())  # they come in any order
    return {name: json.loads(text) for name, text in told.items()}, dict(tensors)


class Door:
    """One way to ask: the calls of an operation end up with a recorder."""

    def __init__(self, way: str, monkeypatch: pytest.MonkeyPatch, answer: Answer = refused):
        self.way, self._answer = way, answer
        self.refusal = ""  # of the last call
        self._sent: list[Any] = []
        self.outside = MagicMock()
        if way != "here":
            kind: Any = Client if way == "waits" else AsyncClient
            self._client: Any = kind(URL, transport=httpx2.MockTransport(self._seen), retries=0)
            return
        for place, names in WORK.items():
            module = importlib.import_module(place)
            for name in names:
                monkeypatch.setattr(module, name, getattr(self.outside, name))
        for job in (EvaluationJob, SavingJob, TrainingJob, TuningJob):  # test_jobs.py: what goes together
            monkeypatch.setattr(job, "check", lambda _: None)
        monkeypatch.setattr("dsearch.client.local.tasks.KeyOptions", MagicMock())
        monkeypatch.setattr("time.time", lambda: 0.0)
        observer: Any = _Observer()
        self._client = LocalEngine(self.outside.engine, observer=observer, device=f"{MADE_UP}device")
        self._client.episodes = self.outside.episodes
        self.outside.embedding_problems.return_value = {}
        self.outside.engine.collection.return_value.answer.return_value = [MagicMock()]

    def _seen(self, request: httpx2.Request) -> httpx2.Response:
        self._sent.append(sent(request))
        return self._answer(request)

    def calls(self, name: str, /, **options: Any) -> list[Any]:
        """What the operation asks for, up to where a recorder's answer is of no use to it."""
        self._sent.clear()
        self.outside.reset_mock()
        self.refusal = ""
        with suppress(Exception):  # of what reads the answer
            try:
                called = getattr(self._client, name)(**options)
                if inspect.isawaitable(called):
                    asyncio.run(_awaited(called))
            except InvalidRequest as error:
                self.refusal = str(error)
                raise
        if self.way != "here":
            return [*self._sent]
        return [
            arrays([called, args, given])
            for called, args, given in self.outside.mock_calls
            if not called.rpartition(".")[2].startswith("__")
        ]


class _Observer:
    """Receives progress."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


async def _awaited(called: Any) -> Any:
    return await called
