"""What a call hands on: recorders around the functions of the engine, and a value for each parameter."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from zlib import crc32

import numpy as np
import pytest
from pydantic import BaseModel
from support.cli.recorder import MADE_UP, plain
from torch import Tensor, nn

import dsearch.training
from dsearch.attention.retrieval.head import Head
from dsearch.client.calls import Calls
from dsearch.engine import Collection, SearchEngine, calls, head_tensors
from dsearch.engine.feedback import Episodes, explored, impression_of
from dsearch.engine.files import store_files
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.models.drafts import DraftHeads
from dsearch.engine.search import gradients
from dsearch.engine.search.embed import embed, rerank
from dsearch.engine.search.similar import similar
from dsearch.errors import Conflict
from dsearch.jobs import ExampleScores
from dsearch.service.tasks.store import TaskStore
from dsearch.store import CheckedDocuments, FeedbackStore
from dsearch.store.reader import Reader
from dsearch.training import judging
from dsearch.types import Stamp

HEAD = {name: tensor.numpy() for name, tensor in head_tensors(Head(32)).items()}
INSTEAD = {
    *(
        gradients.attention_parts,
        gradients.vjp,
        Collection.predict,
        store_files,
        compact,
        dsearch.training.save_model,
        dsearch.training.judge_version,
    ),
    *(dsearch.training.run_training, dsearch.training.run_tuning, dsearch.training.run_evaluation),
    *(SearchEngine.drop, SearchEngine.migrate, dsearch.training.remember, Collection.refresh),
    *(Collection.promote, Collection.rollback, Collection.delete_model),
}
"""Functions that are recorded and do not work: they take long, or delete."""
WORK: list[Any] = [
    *(Collection, DraftHeads, SearchEngine, Episodes, FeedbackStore, gradients, judging),
    *(TaskStore.add, TaskStore.get, TaskStore.list, TaskStore.cancel_queued),
    *(similar, embed, rerank, explored, impression_of, Reader.get, Reader.list),
    *INSTEAD,
]
"""Functions, and classes and modules of them, to which what is asked is handed on."""
NOISE = {"now_s", "shown_s", "received_s", "query_id", "opened", "file", "digest"}
"""What is another in each call: times, ids, and functions made for it."""


class Work(NamedTuple):
    """A call of what does the work."""

    name: str
    arguments: list[Any]


def record_work(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Let each function of `WORK`, and those of declared calls, note its arguments before it works."""
    made: list[Work] = []
    functions: dict[int, Any] = {}
    for owner in WORK:
        members = (
            inspect.getmembers(owner, inspect.isfunction)
            if isinstance(owner, type | ModuleType)
            else [("", owner)]
        )
        for name, function in members:
            ours = isinstance(owner, type) or function.__module__ == getattr(owner, "__name__", "")
            if not name or (ours and not name.startswith("_") and function.__module__.startswith("dsearch.")):
                functions[id(function)] = function
    recording = {key: _recording(function, made) for key, function in functions.items()}
    for kind, function in calls.ANSWERS.items():
        monkeypatch.setitem(calls.ANSWERS, kind, recording.get(id(function)) or _recording(function, made))
    modules = [module for name, module in sys.modules.items() if name.startswith("dsearch.")]
    classes = [
        base for owner in (*WORK, Reader, TaskStore) if isinstance(owner, type) for base in owner.mro()
    ]
    for place in (*modules, *(each for each in classes if each.__module__.startswith("dsearch."))):
        for name, value in list(vars(place).items()):
            if id(value) in recording:
                monkeypatch.setattr(place, name, recording[id(value)])
    return made


def _recording(function: Any, made: list[Work]) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def recorded(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        made.append(Work(function.__qualname__, arrays(dict(bound.arguments))))
        if function in INSTEAD:
            raise Conflict("enough")
        return function(*args, **options)

    return recorded


def arrays(value: Any) -> Any:
    """A value as lists and scalars, without what is another in each call."""
    if isinstance(value, np.ndarray | Tensor):
        return value.tolist()
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, functools.partial):
        return [arrays(value.args), arrays(value.keywords)]
    if hasattr(type(value), "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in type(value).__dataclass_fields__}
    if isinstance(value, Mapping):
        return [[str(name), arrays(item)] for name, item in value.items() if name not in NOISE]
    if isinstance(value, CheckedDocuments):
        return [arrays(document) for document in value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes) and hasattr(value, "__len__"):
        return [arrays(item) for item in value]
    if isinstance(value, nn.Module):
        return arrays(value.state_dict())
    if isinstance(value, bytes):
        return crc32(value)
    return value.name if isinstance(value, Collection) else plain(value)


# ---- values

GIVEN: dict[str, Any] = {
    "cursor": "Z2l2ZW4",
    "tasks cursor": "173",
    "documents": [
        {
            "id": "given-id",
            "text": "given-text",
            "title": "given-title",
            "value": 0.75,
            "metadata": {"given-m": 1},
        }
    ],
    "draft": "0123456789abcdef01234567",
    "dtype": "float64",
    "embeddings": np.array([[0.6, 0.8]], np.float32),
    "encoder_learning_rate": 0.0625,
    "events": [
        {
            "event_id": "given-event",
            "action_name": "click",
            "object_id": "given-object",
            "user_query": "given-words",
            "client_id": "given-client",
        }
    ],
    "explore": 0.125,
    "files": {"given-file": b"x"},
    "filter": {"given-field": {"eq": 1937}},
    "highlight_by": "meaning",
    "hops": 3,
    "include": ["keys"],
    "kind": "HNSW",
    "mode": "dense",
    "objective": "marginal",
    "over": "all",
    "passages": {"tokens": 29, "overlap": 3},
    "pooling": "hard",
    "score": "cosine",
    "search_fields": ["given-field"],
    "stages": 2,
    "stamp": Stamp(1937, "v9", 7),
    "state": "done",
    "systems": [{"model": "v7"}],
    "tensors": {**HEAD, "key_delta": np.full((32, 32), 0.375, np.float32)},
    "with_head": {"given-tensor": [[0.375]]},
}
"""Values of which others are refused; the others follow from the type."""
ARRAYS = {
    **dict.fromkeys(("bias", "vector"), 1),
    **dict.fromkeys(("context", "scores", "table", "vectors", "weights"), 2),
}
"""Dimensions of what is given as numbers."""
VERSIONS = {"model", "version", "parent"}


def parameters_of(name: str) -> dict[str, tuple[Any, bool]]:
    """Type and necessity of each parameter of a call, the keyword arguments of `**options` too."""
    function = inspect.unwrap(getattr(Calls, name))
    every: dict[str, tuple[Any, bool]] = {}
    for parameter in [*inspect.signature(function).parameters.values()][1:]:
        if parameter.kind != parameter.VAR_KEYWORD:
            every[parameter.name] = parameter.annotation, parameter.default is parameter.empty
            continue
        declaration = function.__globals__[parameter.annotation.removeprefix("Unpack[").removesuffix("]")]
        every |= {keyword: (kind, False) for keyword, kind in get_type_hints(declaration).items()}
    return every


def made_up(name: str, kind: Any, *, default: object = None, call: str = "") -> Any:
    """A value of a type that is not the default."""
    name = f"{call} {name}" if f"{call} {name}" in GIVEN else name
    text = f"{MADE_UP}{name}"
    number = (1 + crc32(text.encode()) % 1000) / 1024  # as it is in float32, too
    described = str(kind).replace("collections.abc.", "").replace("typing.", "")
    if name in GIVEN:
        return GIVEN[name]
    if name in VERSIONS:
        return "v1"
    if name in ARRAYS:
        return [number] * 32 if ARRAYS[name] == 1 else [[number] * 32]
    if "ExampleScores" in described:
        return ExampleScores([0.5], [0.25], text)
    for choices in (kind, *get_args(kind)):
        if get_origin(choices) is Literal:
            return next(choice for choice in reversed(get_args(choices)) if choice != default)
    shapes = {
        "Mapping[str, Mapping[": {text: {text: 1.0}},
        "Mapping[str, Sequence[": {text: [text]},
        "Mapping[str, str]": {text: text},
        "Mapping[str, Any]": {text: 1},
        "Sequence[str]": [text],
        "bool": default is not True,
        "<class 'bool'>": default is not True,
        "int": 7,
        "<class 'int'>": 7,
        "float": number,
        "<class 'float'>": number,
    }
    return next((value for shape, value in shapes.items() if described.startswith(shape)), text)


def leaves(value: Any) -> list[Any]:
    """The scalars of a value but booleans, bytes and arrays; texts that a test made up include names."""
    if isinstance(value, ExampleScores | Stamp):
        value = (
            vars(value)
            if hasattr(value, "__dict__")
            else {name: getattr(value, name) for name in value.__slots__}
        )
    if isinstance(value, Mapping):
        return [
            *(name for name in value if str(name).startswith(MADE_UP)),
            *(leaf for item in value.values() for leaf in leaves(item)),
        ]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None or isinstance(value, bool | bytes | np.ndarray) else [value]
