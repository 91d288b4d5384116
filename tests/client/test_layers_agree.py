"""`RemoteSearch` over HTTP against `SearchLayer` on the same collection: every output and every gradient.

Poolings, scores, kinds of values, versions, selections, hops and options in pairwise combinations. Both have
the same state, so float64 agrees to 1e-8 and float32 to its own precision.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.every_version import build_versions
from support.pairwise import Row, pairwise
from support.service.in_thread import served_in_thread
from support.service.service_fakes import WordEncoder
from torch import Tensor, nn

import dsearch
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.service import create_app

pytestmark = pytest.mark.server

QUERIES = ["river stone", "attention music head", "lamp"]
MATCHES = {"equal field": ("exact_match", "even"), "fuzzy": ("fuzzy", "title"), "prefix": ("prefix", "title")}
SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "filter": {"filter": {"i": {"gte": 6}}},
    "among": {"among": ["d001", "d004", "d005", "d009", "d011"]},
    "exclude": {"exclude": ["d002", "d008"]},
    "one": {"among": ["d004"]},
    "none": {"among": []},
}
SCORES = [
    *("dot", "scaled_dot_product", "cosine", "general", "additive"),
    *("gaussian", "epanechnikov", "boxcar", "exact_match", *MATCHES),
]
VERSIONS = [
    *("untrained", "two heads", "excitation and output", "hops", "hidden layer", "memory"),
    *("learned additive", "learned general", "learned gaussian", "passages", "passages of two heads"),
]
FACTORS: dict[str, list[Any]] = {
    "score": SCORES,
    "version": VERSIONS,
    "pooling": ["soft", "hard", "uniform", "exp", "relu", "sigmoid"],
    "mode": ["hybrid", "dense", "keyword"],
    "over": ["candidates", "all"],
    "values": [None, "i", "even", "value", "by position", "by id"],
    "selection": [*SELECTIONS],
    "hops": [None, 1, 2, 3],
    "hop_strength": [None, 0.4, 0.0],
    "temperature": [None, 0.3],
    "width": [None, 0.8],
    "candidates": [3, 1000],
    "dtype": [torch.float32, torch.float64],
    "texts": ["given", "one blank", "none"],
    "bias": [False, True],
    "train_head": [False, True],
    "sequences": [False, True],
    "padding": [False, True],
    "gradients": [True, False],
}
OUTPUTS = [
    *("context", "weights", "scores", "dense", "keyword", "head_weights", "memory", "output"),
    *("covered_mass", "documents", "positions", "ids", "texts"),
]


def sensible(row: Row) -> Row:
    """The nearest row that is not refused; see test_layer_contract.py for what is."""
    row = dict(row)
    if row["score"] not in ("gaussian", "epanechnikov", "boxcar"):
        row["width"] = None
    if row["mode"] == "keyword" and row["score"] != "dot":
        row["mode"] = "hybrid"
    if row["texts"] == "none" and (row["mode"] == "keyword" or row["score"] in MATCHES):
        row["texts"] = "given"
    return row


ROWS = pairwise(FACTORS, sensible)


@dataclass(frozen=True, slots=True)
class Sides:
    """Both ways to one home, and its versions by kind."""

    local: LocalEngine
    client: Client
    versions: dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    home = tmp_path_factory.mktemp("agree") / "home"
    versions = build_versions(home)
    with (
        dsearch.open(home, encoder=WordEncoder) as local,
        socket.create_server(("127.0.0.1", 0)) as listening,
        served_in_thread(create_app(local.engine, query_timeout_s=60), listening),
        Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client,
    ):
        client.ready()
        yield Sides(local, client, versions)


def options_of(row: Row) -> dict[str, Any]:
    names = ("pooling", "mode", "over", "candidates", "hops", "hop_strength", "temperature", "width")
    options = {name: row[name] for name in names if row[name] is not None} | SELECTIONS[row["selection"]]
    score, field = MATCHES.get(row["score"], (row["score"], None))
    return options | {"score": score} | ({} if field is None else {"match_field": field})


def layers_of(sides: Sides, row: Row) -> tuple[Any, Any]:
    """The layer here and the layer there, in the row's precision."""
    name, version = sides.versions[row["version"]]
    options = options_of(row)
    here = dsearch.open_layer(sides.local.engine, name, model=version, **options)
    there = RemoteSearch(sides.client, name, model=version, train_head=row["train_head"], **options)
    return here.to(row["dtype"]), there.to(row["dtype"])


def answer_of(layer: Any, row: Row, positions: int) -> dict[str, Any]:
    """Every output, and every gradient of a loss of all that have one."""
    dtype, learns = row["dtype"], row["gradients"]
    states = torch.as_tensor(WordEncoder().encode_queries(QUERIES)).to(dtype)
    states = states + 0.05 * torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    if row["padding"]:
        states[1] = 0
    texts: Any = {"given": QUERIES, "one blank": [QUERIES[0], "", QUERIES[2]], "none": None}[row["texts"]]
    if row["sequences"]:
        states = torch.stack([states, states.flip(0)])
        texts = None if texts is None else [texts, texts[::-1]]
    states.requires_grad_(learns)
    table = torch.linspace(-1, 1, 2 * positions).reshape(positions, 2).to(dtype).requires_grad_(learns)

    def by_id(ids: list[list[str]]) -> Tensor:
        longest = max(1, *map(len, ids))
        places = [[int(id[1:]) % positions for id in line] + [0] * (longest - len(line)) for line in ids]
        return table[torch.tensor(places)]

    values: Any = {"by position": table, "by id": by_id}.get(row["values"], row["values"])
    if row["bias"]:
        layer.bias = nn.Parameter(torch.linspace(-0.3, 0.3, positions).to(dtype))
    found = layer(states, texts, values=values, with_texts=True)
    answer = {name: getattr(found, name) for name in OUTPUTS}
    if learns:
        scores = found.scores.masked_fill(found.scores == -torch.inf, 0.0)
        smooth = [found.context, found.weights, scores] + [found.output] * (found.output is not None)
        generator = torch.Generator().manual_seed(2)
        sum(
            (part * torch.randn(part.shape, generator=generator).to(part)).sum() for part in smooth
        ).backward()
        learned = {"states": states, "values": table} | ({"bias": layer.bias} if row["bias"] else {})
        if row["train_head"]:
            learned |= {f"head.{name}": one for name, one in layer.head.named_parameters()}
        for name, one in learned.items():
            answer[f"gradient of {name}"] = torch.zeros_like(one) if one.grad is None else one.grad
    return answer


def difference(name: str, one: Any, other: Any, dtype: torch.dtype) -> str | None:
    """Return the differences in words."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{name}: {one.dtype} {[*one.shape]}, {other.dtype} {[*other.shape]}"
        close = {"rtol": 1e-8, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
        return None if torch.allclose(one, other, **close) else f"{name}: {(one - other).abs().max():.3g}"
    same = np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
    return None if same else f"{name}: {one} {other}"


def test_the_rows_are_few_and_have_every_pair_that_is_not_refused() -> None:
    assert len(ROWS) < 260
    for one, other in (("score", "pooling"), ("score", "values"), ("version", "values"), ("over", "version")):
        met = {(row[one], row[other]) for row in ROWS}
        assert met == {(a, b) for a in FACTORS[one] for b in FACTORS[other]}


@pytest.mark.parametrize("score", SCORES)
def test_remote_and_local_layers_agree(sides: Sides, score: str) -> None:
    for row in (row for row in ROWS if row["score"] == score):
        here, there = layers_of(sides, row)
        positions = here.snapshot.positions
        expected, given = answer_of(here, row, positions), answer_of(there, row, positions)
        if row["version"] == "memory":  # stays on the server: `train_head` has none of its parameters
            expected = {name: part for name, part in expected.items() if "head.memory." not in name}
        assert expected.keys() == given.keys()
        found = [difference(name, expected[name], given[name], row["dtype"]) for name in expected]
        assert not any(found), (row, [one for one in found if one])
