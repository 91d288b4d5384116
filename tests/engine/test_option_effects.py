"""Each option of a search, or of attention, reaches what does the work in every way that a collection has.

The options are taken from their declarations. Each is given in each way, once or with two values: every
answer must differ from the answer without it, and from the other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from support.engine.reference import turned_head
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.search.gradients import GradientQuery, Part, attention_parts, vjp
from dsearch.search_options import SearchOptions
from dsearch.types import Document, Stamp

WORDS = "apple bread cheese dough egg flour grape honey ice juice kale lemon mango nut oat pear"
FOODS = WORDS.split()
QUERY, PHRASED = "honey lemmon bread", '"and" +number honey lemmon bread'
EXAMPLES = ["d3", "d7"]
pytestmark = pytest.mark.usefixtures("unchecked")  # thousands of arrays


def documents() -> list[Document]:
    """Neighbours are alike; every fourth one has the text of another, and every fifth is long."""
    made: list[Document] = []
    for i in range(40):
        words = [FOODS[(i * step) % 16] for step in (1, 3, 5)]
        text = f"{' and '.join(words)} number" if i % 4 else f"{FOODS[i % 16]} and honey number"
        if i % 5 == 2:
            text = " ".join([text, *(FOODS[(i + at) % 16] for at in range(60))])
        metadata = {
            "n": i,
            "kind": f"k{i % 3}",
            "place": {"row": (i * 7) % 8},
            "shout": FOODS[i % 16].upper(),
        }
        made.append(Document(f"d{i}", text, FOODS[i % 16], metadata, [float(i), float(i * 3 % 7)]))
    return made


def moved(head: Head) -> Head:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        head.hop_strength.fill_(0.0)
    return head.eval()


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Documents of before and after the build; versions of each kind, of which v1 is live."""
    home = tmp_path_factory.mktemp("reach")
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        made = engine.create("reach", passages=PassageOptions(tokens=16, overlap=4))
        every = documents()
        made.ingest(every[:33], second_stage=True)
        made.upsert(every[33:])
        made.delete(["d5"])
        made.add_model(turned_head(), {})
        made.add_model(moved(Head(32, heads=2, rank=3)), {})
        learned = Head(32)
        learned.score = new_score("general", 32)
        made.add_model(moved(learned), {})
        own = moved(Head(32))
        own.open_output(1)
        made.add_model(moved(own), {"readout": {"field": "n", "kind": "number"}})
        made.add_model(Head(32), {"scope": "full"}, encoder=change(), documents=of_its_own(made))
        made.promote("v1")
        yield made


def change() -> EncoderChange:
    generator = torch.Generator().manual_seed(0)
    return EncoderChange(EncoderTraining("all"), {"weight": torch.randn(32, 32, generator=generator)})


def of_its_own(collection: Collection) -> EncodedDocuments:
    encoder, state = HashingEncoder(), collection.snapshot
    encoder.load_state_dict({"weight": change().tensors["weight"]})
    texts = collection.store.contents(state.rows(np.arange(state.positions)))
    return EncodedDocuments(state, encoder.encode_documents(texts))


def plain(value: Any) -> Any:
    """What an answer says, as JSON: without times, and without cursors, which have every option in them."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        rounded = np.round(value.astype(np.float64), 6) + 0.0
        return [str(value.dtype), hashlib.sha256(rounded.tobytes()).hexdigest()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        left_out = {"took_ms", "next_cursor", "draw", "draft"}
        return {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in left_out
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(of) for name, of in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def said(answer: Callable[[], Any]) -> str:
    return json.dumps(plain(answer()), sort_keys=True, default=str)


# ---- searches

Way = Callable[..., Any]
Given = tuple[dict[str, Any], list[Any]]


def vector() -> list[float]:
    return HashingEncoder().encode_queries(["honey bread"])[0].tolist()


SEARCHES: dict[str, Way] = {
    "text": lambda c, **o: c.search(QUERY, **o),
    "text with phrases": lambda c, **o: c.search(PHRASED, **o),
    "batch": lambda c, **o: c.search_batch([QUERY, "kale lemmon"], **o),
    "batch with phrases": lambda c, **o: c.search_batch(["kale", PHRASED], **o)[1],
    "two heads": lambda c, **o: c.search(QUERY, **{"model": "v2"} | o),
    "learned score": lambda c, **o: c.search(QUERY, **{"model": "v3"} | o),
    "own documents": lambda c, **o: c.search(QUERY, **{"model": "v5"} | o),
    "vector": lambda c, **o: c.search(vector=vector(), **o),
    "text and vector": lambda c, **o: c.search(QUERY, vector=vector(), **o),
    "similar": lambda c, **o: c.similar(EXAMPLES, unlike=["d9"], **o),
    "similar with text": lambda c, **o: c.similar(EXAMPLES, query=QUERY, **o),
    "similar with phrases": lambda c, **o: c.similar(EXAMPLES, query=PHRASED, **o),
    "similar with vector": lambda c, **o: c.similar(EXAMPLES, vector=vector(), **o),
    "similar with both": lambda c, **o: c.similar(EXAMPLES, query=QUERY, vector=vector(), **o),
}
OF_SEARCHES: dict[str, Given] = {
    "limit": ({}, [2, 3]),
    "offset": ({}, [1, 2]),
    "filter": ({}, [{"n": {"lt": 20}}, {"kind": {"eq": "k1"}}]),
    "operators": ({}, [False]),
    "mode": ({}, ["dense", "keyword"]),
    "model": ({}, ["v0", "v2"]),
    "hops": ({"hop_strength": 1.0, "hops": 1}, [2, 3]),
    "hop_strength": ({"hops": 2}, [0.5, 2.0]),
    "score_threshold": ({"limit": 40}, [0.4, 0.6]),
    "weight_threshold": ({"limit": 40}, [0.001, 0.03]),
    "explain": ({}, [True]),
    "highlight": ({}, [True]),
    "highlight_by": ({"highlight": True}, ["meaning"]),
    "candidates": ({"limit": 40}, [3, 5]),
    "stages": ({"stages": 1}, [2]),
    "rerank_candidates": ({"stages": 2, "limit": 40}, [2, 20]),
    "group_by": ({}, ["kind", "place.row"]),
    "collapse": ({"limit": 40}, [True]),
    "diversity": ({}, [0.4, 0.9]),
    "sort": ({}, ["n", "-place.row"]),
    "fields": ({}, ["title,text", "place.row"]),
    "typos": ({}, [True]),
    "coverage": ({"coverage": False}, [True]),
}
"""Of each option what is given beside it, and values of which each gives another answer."""
WITHOUT_WORDS = {"mode", "operators", "highlight", "highlight_by", "typos", "stages", "rerank_candidates"}
TURNED = {"stages", "rerank_candidates", "highlight_by", "mode=keyword"}
NOT_IN = {
    "vector": WITHOUT_WORDS,
    "similar": WITHOUT_WORDS,
    "similar with vector": WITHOUT_WORDS,
    "text": {"operators"},
    "batch": {"operators"},
    "two heads": {"operators", "model", "rerank_candidates", "stages"},
    "learned score": {"operators", "model", "rerank_candidates", "stages"},
    "own documents": {"operators", "model", "stages", "rerank_candidates", "highlight_by"},
    "text and vector": {"operators", *TURNED},
    "similar with text": {"operators", *TURNED},
    "similar with both": {"operators", *TURNED},
    "similar with phrases": TURNED,
}
"""Options that mean nothing in a way: there are no words, no phrases, or no tokens of the query."""
ELSEWHERE = {
    "cursor": "engine/search/test_pagination.py",
    "partial": "of a cluster",
}


def test_no_option_of_a_search_is_forgotten() -> None:
    assert {*OF_SEARCHES, *ELSEWHERE} == {field.name for field in dataclasses.fields(SearchOptions)}


@pytest.mark.parametrize("way", SEARCHES)
def test_each_option_of_a_search_reaches_it(collection: Collection, way: str) -> None:
    lost = lost_options(partial(SEARCHES[way], collection), OF_SEARCHES, NOT_IN.get(way, set()))
    assert not lost, "\n".join([way, *lost])


def lost_options(way: Way, options: Mapping[str, Given], not_in: Container[str]) -> list[str]:
    """Say of which options the answer is the same as without them, or as with another value."""
    lost: list[str] = []
    answered: dict[str, str] = {}

    def answer(chosen: dict[str, Any]) -> str:
        key = repr(chosen)
        if key not in answered:
            answered[key] = said(partial(way, **chosen))
        return answered[key]

    for name, (beside, values) in options.items():
        if name not in not_in:
            values = [value for value in values if f"{name}={value}" not in not_in]
            given = [("left out", beside), *((repr(value), {**beside, name: value}) for value in values)]
            answers = [(value, answer(chosen)) for value, chosen in given]
            every = [of for _, of in answers]
            same = [value for value, of in answers if every.count(of) > 1]
            lost += [f"{name}: the same answer for {' and '.join(same)}"] if same else []
    return lost


# ---- attention


def states(*texts: str) -> torch.Tensor:
    return torch.as_tensor(HashingEncoder().encode_queries(texts or ["honey bread", "kale"]))


TEXTS = ["honey bread", "kale"]
POSITIONS = 40


def numbers_of_head(seed: int) -> dict[str, Any]:
    return {name: tensor.numpy().tolist() for name, tensor in turned_head(seed=seed).own_tensors().items()}


def asked(**given: Any) -> GradientQuery:
    """A query of `attention_parts`, whose other fields are the options of its layer."""
    names = [field.name for field in dataclasses.fields(GradientQuery)]
    own = {name: given.pop(name) for name in names if name in given}
    return GradientQuery(**own, options=given)


def differentiated(collection: Collection, **given: Any) -> Any:
    query = asked(**given)
    found = attention_parts(collection, query)
    weights = [[1.0 / (at + 1) for at in range(len(ids))] for ids in found.ids]
    context = None if query.table is not None else np.ones_like(found.context)
    return vjp(collection, query, context=context, weights=weights, scores=weights)


ATTENTION: dict[str, Way] = {
    "attend by texts": lambda c, **o: c.attend(TEXTS, **o),
    "attend by states": lambda c, **o: c.attend(states(), **o),
    "attend over all": lambda c, **o: c.attend(TEXTS, **{"over": "all"} | o),
    "predict by texts": lambda c, **o: c.predict(TEXTS, **{"field": "n"} | o),
    "predict over all": lambda c, **o: c.predict(TEXTS, **{"field": "n", "over": "all"} | o),
    "learned values": lambda c, **o: c.predict(TEXTS, **{"field": "n", "model": "v4"} | o),
    "learned values over all": lambda c, **o: c.predict(
        TEXTS, **{"field": "n", "model": "v4", "over": "all"} | o
    ),
    "parts by texts": lambda c, **o: attention_parts(c, asked(texts=TEXTS, **o)),
    "parts by ids": lambda c, **o: attention_parts(c, asked(ids=EXAMPLES, **o)),
    "parts over all": lambda c, **o: attention_parts(c, asked(texts=TEXTS, **{"over": "all"} | o)),
    "parts of a draft": lambda c, **o: attention_parts(c, drafted(c, texts=TEXTS, **o)),
    "gradients by texts": lambda c, **o: differentiated(c, texts=TEXTS, **o),
    "layer": lambda c, **o: layered(c, **o),
}


def drafted(collection: Collection, **given: Any) -> GradientQuery:
    draft = collection.drafts.add(turned_head(seed=9), "v1", "someone")
    return asked(draft=draft.id, owner="someone", **given)


def layered(collection: Collection, **given: Any) -> Any:
    layer, stamp = collection.layer_and_stamp(**given)
    output = layer(states(*TEXTS), TEXTS)
    return stamp, output.positions, output.weights, output.scores


OF_ATTENTION: dict[str, Given] = {
    "mode": ({}, ["dense", "keyword"]),
    "model": ({}, ["v0", "v3"]),
    "filter": ({}, [{"n": {"lt": 20}}, {"kind": {"eq": "k1"}}]),
    "candidates": ({}, [3, 5]),
    "over": ({"candidates": 5}, ["all"]),
    "hops": ({"hop_strength": 1.0, "hops": 1}, [2, 3]),
    "hop_strength": ({"hops": 2}, [0.5, 2.0]),
    "score": ({"mode": "dense"}, ["cosine", "gaussian"]),
    "pooling": ({}, ["hard", "uniform"]),
    "width": ({"mode": "dense", "score": "gaussian"}, [0.3, 2.0]),
    "temperature": ({}, [0.3, 0.7]),
    "match_field": ({"score": "fuzzy", "match_field": "id"}, ["title", "text"]),
    "ignore_case": ({"score": "prefix", "match_field": "shout"}, [True]),
    "among": ({}, [[f"d{i}" for i in range(20)], ["d1", "d3"]]),
    "exclude": ({}, [["d3", "d8"], [f"d{i}" for i in range(20)]]),
}
OF_THE_LAYER_ALONE = {
    "depth": "what a search lists beyond its candidates",
    "stages": "a second stage of searches",
    "rerank_candidates": "likewise",
}
OWN = {
    "predict": {"evidence": ({}, [0, 3]), "field": ({}, ["value", "kind"])},
}
WITHOUT_TEXTS = {"match_field", "ignore_case", "mode"}
ANOTHER_MODEL = {"model"}
SHARED_BY_ALL = {"candidates"}
NOT_ATTENDED = {
    "attend by states": WITHOUT_TEXTS,
    "parts by ids": WITHOUT_TEXTS,
    "attend over all": {"over"},
    "predict over all": {"over", *SHARED_BY_ALL},
    "learned values": ANOTHER_MODEL,
    "learned values over all": {"over", *ANOTHER_MODEL, *SHARED_BY_ALL},
    "parts over all": {"over"},
    "parts of a draft": ANOTHER_MODEL,
}


def test_no_option_of_attention_is_forgotten() -> None:
    declared = get_type_hints(LayerOptions, localns={"Score": Any})
    assert {*OF_ATTENTION} == {*declared, "model", "filter"} - {*OF_THE_LAYER_ALONE}


@pytest.mark.parametrize("way", ATTENTION)
def test_each_option_of_attention_reaches_it(collection: Collection, way: str) -> None:
    own = OWN.get(way.split()[0], {})
    lost = lost_options(partial(ATTENTION[way], collection), OF_ATTENTION | own, NOT_ATTENDED.get(way, set()))
    assert not lost, "\n".join([way, *lost])


OF_QUERIES: dict[str, Given] = {
    "states": ({}, [states("lemon", "nut"), states("pear", "oat")]),
    "texts": ({"texts": None, "states": states()}, [["lemon", "nut"], ["pear", "oat"]]),
    "ids": ({}, [["d1", "d2"], ["d3", "d4"]]),
    "stamp": ({}, ["v2", "v3"]),
    "dtype": ({}, ["float64"]),
    "draft": ({"owner": "someone"}, [5, 6]),
    "field": ({}, ["n", "value"]),
    "with_head": ({"with_head": numbers_of_head(1)}, [numbers_of_head(2)]),
    "bias": ({}, [np.linspace(0, 1, POSITIONS), np.linspace(1, 0, POSITIONS)]),
    "table": ({}, [np.ones((POSITIONS, 2)), np.eye(POSITIONS)]),
}
"""Of a query that asks for parts or gradients, beside the options of its layer."""
QUERIES: dict[str, Way] = {
    "parts": lambda c, **o: attention_parts(c, asked(**{"texts": TEXTS} | named(c, o))),
    "gradients": lambda c, **o: differentiated(c, **{"texts": TEXTS} | named(c, o)),
}


def named(collection: Collection, given: dict[str, Any]) -> dict[str, Any]:
    """Give a stamp for its version, and a draft for the seed of its head."""
    chosen = {**given}
    if "stamp" in chosen:
        snapshot = collection.snapshot
        chosen["stamp"] = Stamp(snapshot.generation.number, chosen["stamp"], snapshot.sequence)
    if "draft" in chosen:
        chosen["draft"] = collection.drafts.add(turned_head(seed=chosen["draft"]), "v1", "someone").id
    return chosen


INCLUDED: Given = {"include": ()}, [(part,) for part in get_args(Part)]


def test_what_is_asked_for_beside_attention_is_answered(collection: Collection) -> None:
    def parts(include: tuple[Part, ...] = (), **options: Any) -> Any:
        return attention_parts(collection, asked(texts=TEXTS, **options), include=include)

    assert not lost_options(parts, {"include": INCLUDED}, ())


def test_each_gradient_that_is_given_counts(collection: Collection) -> None:
    query = asked(texts=TEXTS)
    found = attention_parts(collection, query)
    rows = [np.linspace(1, 2, len(ids)).tolist() for ids in found.ids]
    given = {"context": np.ones_like(found.context), "weights": rows, "scores": rows}

    def gradients(**some: Any) -> Any:
        return vjp(collection, query, **{"context": 0 * given["context"]} | some)

    assert not lost_options(gradients, {name: ({}, [value]) for name, value in given.items()}, ())


def test_no_part_of_a_query_is_forgotten() -> None:
    every = {field.name for field in dataclasses.fields(GradientQuery)}
    assert {*OF_QUERIES} == every - {"model", "filter", "options", "owner"}


@pytest.mark.parametrize("way", QUERIES)
def test_each_part_of_a_query_reaches_it(collection: Collection, way: str) -> None:
    lost = lost_options(partial(QUERIES[way], collection), OF_QUERIES, set())
    assert not lost, "\n".join([way, *lost])


WAYS = {**SEARCHES, **ATTENTION, **QUERIES}
NAMED = {
    *("two heads", "learned score", "own documents", "learned values", "learned values over all"),
    "parts of a draft",
}
"""Ways that name a version themselves."""


@pytest.fixture
def live(collection: Collection) -> Iterator[Callable[[str], None]]:
    yield collection.promote
    collection.promote("v1")


@pytest.mark.parametrize("version", ["v2", "v5"])
def test_a_version_by_its_name_answers_as_when_it_is_live(
    collection: Collection, live: Callable[[str], None], version: str
) -> None:
    def answers(**given: Any) -> dict[str, str]:
        every = {way: said(partial(WAYS[way], collection, **given)) for way in WAYS if way not in NAMED}
        return {way: re.sub(r'"sequence": \d+', "", answer) for way, answer in every.items()}

    by_name = answers(model=version)
    live(version)
    assert {way for way, answer in answers().items() if answer != by_name[way]} == set()


OF_LAYERS: dict[str, Any] = {
    "mode": "dense",
    "candidates": 7,
    "depth": 9,
    "over": "all",
    "hops": 3,
    "hop_strength": 0.25,
    "score": "gaussian",
    "pooling": "hard",
    "width": 0.5,
    "temperature": 0.125,
    "stages": 2,
    "rerank_candidates": 3,
}
BESIDE = {"width": {"score": "gaussian", "mode": "dense"}, "score": {"mode": "dense"}}
ATTRIBUTES = {"hops": "fixed_hops", "temperature": "_temperature", "width": "score", "score": "score"}
LAYERS: dict[str, Callable[[Collection, Any], Ranker]] = {
    "in NumPy": lambda c, o: c.layers.over(c.snapshot, c.ranking_head("v1"), o),
    "a module": lambda c, o: c.layers.over(c.snapshot, c.head("v1"), o),
    "of the collection": lambda c, o: c.layer_over(c.snapshot, c.head("v1"), o),
    "by another head": lambda c, o: c.layer_over(c.snapshot, c.head("v0"), o).with_head(
        c.head("v1"), c.snapshot
    ),
}


def test_no_option_of_a_layer_is_forgotten() -> None:
    assert {*OF_LAYERS} == {*inspect.signature(Ranker.__init__).parameters} - {"self", "snapshot", "head"}


@pytest.mark.parametrize("way", LAYERS)
def test_each_option_of_a_layer_reaches_it(collection: Collection, way: str) -> None:
    lost = []
    for name, value in OF_LAYERS.items():
        if (name, way) == ("stages", "by another head"):
            continue  # decided by that head
        layer = LAYERS[way](collection, {**BESIDE.get(name, {}), name: value})
        found = getattr(layer, ATTRIBUTES.get(name, name))
        if name in ("score", "width"):
            found = found.name if name == "score" else found.width
        lost += [] if found == value else [f"{name}={value!r}: {found!r}"]
    assert not lost, "\n".join([way, *lost])
