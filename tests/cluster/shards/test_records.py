"""Each field of each request to a shard arrives over the wire, and has a part in the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.cluster_checks import WORDS, Packed
from support.doors import arrays
from support.fakes import HashingEncoder

from dsearch.cluster import messages
from dsearch.cluster.release import split
from dsearch.cluster.search.attention import name_of
from dsearch.cluster.shards.shard import LocalShards
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.models.memory import memory_bytes
from dsearch.store import parse_filter
from dsearch.training import remember
from dsearch.types import Document

SHARD = 1  # of three: its positions begin behind those of the first
TEXT = "apple bread cheese"
PAST = {f"p{n}": f"{WORDS[n]} {WORDS[(n * 5 + 2) % 16]}" for n in range(8)}
JUDGED = {f"p{n}": {f"d{(n * 7) % 36}": 2.0, f"d{(n * 11 + 3) % 36}": 1.0} for n in range(8)}


def collection_of(engine: SearchEngine, name: str, *, tokens: int | None) -> Collection:
    """Thirty-six documents; two of three are long where there are passages."""
    cut = PassageOptions(none=True) if tokens is None else PassageOptions(tokens=tokens, overlap=2)
    made = engine.create(name, passages=cut)
    texts = [" ".join(WORDS[(n * k) % 16] for k in range(1, 40 if n % 3 else 4)) for n in range(36)]
    documents = [Document(f"d{n}", text, metadata={"n": n % 4}) for n, text in enumerate(texts)]
    made.ingest(documents, second_stage=tokens is not None)
    return made


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """By collection: shards that are asked through what travels, and what requests are made of."""
    folder = tmp_path_factory.mktemp("records")
    made: dict[str, Any] = {}
    opened: list[LocalShards] = []
    with SearchEngine(folder / "home", encoder=HashingEncoder) as engine:
        for name, tokens in (("long", 16), ("short", None)):
            collection = collection_of(engine, name, tokens=tokens)
            if name == "long":
                remember(collection, PAST, JUDGED, accept=True)
                memory = collection.head(collection.live_model).memory
                assert memory is not None
                made["memory"] = messages.MemoryContent(name_of(memory), memory_bytes(memory))
            split(collection.store, collection.snapshot.generation, folder / name, 3)
            local = LocalShards(folder / name)
            opened.append(local)
            made[name] = Packed(local)
        yield made
    for local in opened:
        local.close()


def query_text(text: str) -> messages.QueryText:
    _, tokens = HashingEncoder().encode_tokens([text], "query")
    return messages.QueryText(text, *tokens[0])


def unit(*, heads: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, heads, 32)).astype(np.float32)


TWO = [query_text(TEXT), query_text("honey ice")]
ONE_HEAD = np.full(1, 0.5, np.float32)
HERE = [13, 14]  # of the second shard
PREVIEW = messages.HitPreview(2, TEXT, explain=True, highlight=True)
MEANING = messages.MeaningRequest(TWO, [0, 0])
PROPOSAL = messages.ProposalRequest(
    unit(), [TEXT], "hybrid", 3, None, (), (), True, ONE_HEAD, 0.5, preview=PREVIEW
)
HITS = messages.HitRequest(HERE, None, [TEXT, TEXT], explain=True, highlight=True)
RESCORING = messages.RescoreRequest(TWO, np.array([HERE, HERE], np.int64), embeddings=False)
ATTENTION = messages.ShardAttendRequest(unit(), [TEXT], ONE_HEAD, 0.5, None)
UPSTREAM = messages.ShardGradients(ATTENTION, unit(seed=2), np.ones((1, 1), np.float32))
GATHERING = messages.GatherRequest(np.array([HERE], np.int64), [TEXT])
POOLING = messages.PoolRequest(np.array([[[0, 1]]], np.int64), np.zeros((1, 1, 2), np.float32))
WEIGHTED = (0.3, 0.1)
CASES: list[tuple[str, str, Any, Callable[[Any], Any], dict[str, Any]]] = [
    (
        *("long", "propose", PROPOSAL, lambda request: request),
        {
            "folded": unit(seed=3),
            "texts": ["honey ice"],
            "mode": "dense",
            "candidates": 5,
            "filter": parse_filter({"n": {"eq": 1}}),
            "required": ("bread",),
            "excluded": ("bread",),
            "partition": False,
            "keyword_weight": np.full(1, 5.0, np.float32),
            "temperature": 2.0,
            "weighting": WEIGHTED,
            "preview": None,
            "past": "its fields, below",
            "collapse": True,
            "depth": 6,
        },
    ),
    (
        *("long", "propose", PREVIEW, lambda preview: replace(PROPOSAL, preview=preview)),
        {"most": 1, "words": "cheese", "explain": False, "highlight": False},
    ),
    (
        *("long", "show", HITS, lambda request: request),
        {
            "positions": [15, 16],
            "keys": [12, 13],
            "queries": ["honey", "ice"],
            "explain": False,
            "highlight": False,
            "weighting": WEIGHTED,
            "meaning": MEANING,
        },
    ),
    (
        *("long", "show", MEANING, lambda meaning: replace(HITS, meaning=meaning)),
        {"queries": TWO[::-1], "numbers": [1, 1]},
    ),
    (
        *("long", "rerank", RESCORING, lambda request: request),
        {
            "queries": TWO[::-1],
            "positions": np.array([[15, 16], [15, 16]], np.int64),
            "embeddings": True,
        },
    ),
    (
        *("long", "rerank", TWO[0], lambda query: replace(RESCORING, queries=[query, TWO[1]])),
        {
            "text": "kale pear lemon",
            "states": TWO[0].states[::-1].copy(),
            "spans": TWO[0].spans[:1].repeat(3, 0),
        },
    ),
    (
        *("long", "pool", POOLING, lambda request: request),
        {"keys": np.array([[[2, 3]]], np.int64), "logits": np.array([[[1.0, 0.0]]], np.float32)},
    ),
    (
        *("short", "attend", ATTENTION, lambda request: request),
        {
            "folded": unit(seed=3),
            "texts": ["honey"],
            "keyword_weight": np.full(1, 5.0, np.float32),
            "temperature": 2.0,
            "weighting": WEIGHTED,
        },
    ),
    (
        *("short", "attend_backward", UPSTREAM, lambda upstream: upstream),
        {
            "request": replace(ATTENTION, texts=["honey"]),
            "context": unit(seed=4),
            "log_partition": np.zeros((1, 1), np.float32),
        },
    ),
    (
        *("short", "gather", GATHERING, lambda request: request),
        {"positions": np.array([[15, 16]], np.int64), "texts": ["honey"], "weighting": WEIGHTED},
    ),
]
"""Collection, method, a record, the request that has it, and another value of each field of the record."""
ANSWERS = {"Proposal", "PoolResult", "RescoreResult", "ShardHit", "ShardAttention", "GatherResult"}
ELSEWHERE = {"MemoryContent": "search/test_memory.py", "PastQueries": "below"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{type(case[2]).__name__}")
def test_each_field_has_a_part_in_the_answer(shards: dict[str, Any], case: Any) -> None:
    name, method, record, request_of, changes = case
    assert {*changes} == {field.name for field in fields(record)}

    def answer(changed: Any) -> Any:
        return arrays(shards[name].ask(method, {SHARD: request_of(changed)}))

    plainly = answer(record)
    assert plainly == answer(record)
    same = [
        field
        for field, value in changes.items()
        if field != "past" and answer(replace(record, **{field: value})) == plainly
    ]
    assert not same, f"{type(record).__name__} answered alike whatever they are: {', '.join(same)}"


def test_each_field_of_past_queries_has_a_part_in_the_answer(shards: dict[str, Any]) -> None:
    memory = shards["memory"]
    past = messages.PastQueries(memory.name, np.array([[2]], np.int64), np.ones((1, 1), np.float32), True)
    shards["long"].ask("learn", {SHARD: memory})

    def proposed(past: messages.PastQueries | None) -> messages.Proposal:
        return shards["long"].ask("propose", {SHARD: replace(PROPOSAL, past=past, preview=None)})[SHARD]

    plainly = proposed(past)
    assert not plainly.lacks_memory
    assert arrays(proposed(None)) != arrays(plainly)
    changes: dict[str, Any] = {
        "rows": np.array([[3]], np.int64),
        "weights": np.full((1, 1), 0.5, np.float32),
        "borrowers": False,
    }
    assert {*changes, "name"} == {field.name for field in fields(messages.PastQueries)}
    for field, value in changes.items():
        assert arrays(proposed(replace(past, **{field: value}))) != arrays(plainly), field
    assert proposed(replace(past, name="another")).lacks_memory


def test_no_record_is_forgotten() -> None:
    made = {
        name
        for name, kind in vars(messages).items()
        if is_dataclass(kind) and kind.__module__ == messages.__name__
    }
    assert made == {type(case[2]).__name__ for case in CASES} | ANSWERS | {*ELSEWHERE}
