"""`save_model`: a layer that any loss has trained becomes a version, by the gate that judges every other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.numbers import PAIRS, number_documents
from support.training.topics import queries_of, topics_in

import dsearch
from dsearch.attention.retrieval.head import Head
from dsearch.client import LocalEngine
from dsearch.encoder import Encoder, LearningEncoder
from dsearch.engine import Collection, CollectionLayer, SearchEngine
from dsearch.errors import Cancelled, Conflict, DimensionMismatch, InvalidRequest
from dsearch.jobs import ExampleScores, JudgedQueries, SavingJob
from dsearch.training import Observer, save_model
from dsearch.types import Document, Progress

TEXTS, JUDGED = queries_of()
HELD_OUT = [id for id in TEXTS if id.endswith("-3")]
LEARNED = [id for id in TEXTS if id not in HELD_OUT]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path / "home", encoder=lambda: HashingEncoder(64)) as engine:
        topics_in(engine)
        yield engine


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return engine.collection("topics")


def likelihood(layer: CollectionLayer, ids: list[str]) -> torch.Tensor:
    """log Σ_d weight(q, d) over the relevant documents: a loss that dsearch does not know."""
    out = layer(layer.query_states([TEXTS[id] for id in ids]))
    names = layer.ids(out.positions)
    relevant = [[name in JUDGED[id] for name in line] for id, line in zip(ids, names, strict=True)]
    return (out.weights * torch.tensor(relevant, device=out.weights.device)).sum(1).clamp_min(1e-9).log()


def learn(layer: CollectionLayer, steps: int = 40) -> CollectionLayer:
    optimizer = torch.optim.AdamW([one for one in layer.parameters() if one.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (-likelihood(layer, LEARNED).mean()).backward()
        optimizer.step()
    return layer


def evidence(training: list[str] | None = None) -> JudgedQueries:
    def of(ids: list[str]) -> dict[str, Any]:
        return {id: JUDGED[id] for id in ids}

    return JudgedQueries({id: TEXTS[id] for id in HELD_OUT}, of(HELD_OUT), training and of(training))


def layer_of(engine: SearchEngine, **options: Any) -> CollectionLayer:
    return dsearch.open_layer(engine, "topics", mode="dense", **options)


def test_a_layer_that_won_on_judgements_answers(engine: SearchEngine, topics: Collection) -> None:
    layer = learn(layer_of(engine))
    saved = save_model(topics, layer, evidence=evidence(), record={"loss": "mine"})
    assert (saved.version, saved.live, saved.parent) == ("v1", "v1", "v0")
    record = topics.store.model("v1").record
    assert record["gate"]["verdict"] == "passed"
    assert record["gate"]["measure"] == "nDCG@10"
    assert (record["examples"], record["uploaded"]) == (len(HELD_OUT), {"loss": "mine"})
    before, after = (
        [
            hit.id in JUDGED[id]
            for id in HELD_OUT
            for hit in topics.search(TEXTS[id], limit=1, mode="dense", model=model).hits
        ]
        for model in ("v0", "v1")
    )
    assert sum(after) > sum(before) + 5
    assert topics.rollback() == "v0"


def test_what_is_saved_is_what_was_trained(engine: SearchEngine, topics: Collection) -> None:
    layer = learn(layer_of(engine))
    save_model(topics, layer, evidence=evidence())
    states = layer.query_states([TEXTS[id] for id in HELD_OUT])
    again = layer_of(engine)
    assert again.version == "v1"
    torch.testing.assert_close(again(states).context, layer(states).context, rtol=0, atol=0)


def test_the_training_judgements_divide_the_report(engine: SearchEngine, topics: Collection) -> None:
    layer = learn(layer_of(engine))
    some = [id for id in LEARNED if int(id[1:3]) < 10]
    judged = evidence(some)
    irrelevant = dict.fromkeys((id for of in JUDGED.values() for id in of), 0.0)  # does not make it seen
    training = {query: irrelevant | of for query, of in (judged.training or {}).items()}
    save_model(topics, layer, evidence=replace(judged, training=training), promote=False)
    slices = {one["name"]: one["queries"] for one in topics.store.model("v1").record["gate"]["slices"]}
    assert slices == {"all": 20, "seen": 10, "unseen": 10}
    assert topics.live_model == "v0"


def test_a_function_scores_the_live_version_and_the_new_one(engine: SearchEngine, topics: Collection) -> None:
    asked: list[str] = []

    def score(layer: CollectionLayer) -> torch.Tensor:
        assert not layer.training
        assert not torch.is_grad_enabled()
        asked.append(layer.version)
        return likelihood(layer, HELD_OUT)

    first = save_model(topics, learn(layer_of(engine)), evidence=score, measure="log-likelihood")
    assert first.live == "v1"
    assert "held-out log-likelihood" in first.reason
    second = save_model(topics, layer_of(engine, model="v0"), evidence=score)
    assert second.live is None  # the untrained head against v1
    assert "it did not rise" in second.reason
    assert asked == ["v0", "v0", "v1", "v0"]
    assert [model.parent for model in topics.store.models()] == ["v0", "v0"]


def test_an_observer_sees_the_judgement_and_stops_it(engine: SearchEngine, topics: Collection) -> None:
    class Watching(Observer):
        def __init__(self, last: int):
            self.done: list[int] = []
            self.last = last

        def progress(self, progress: Progress) -> None:
            assert (progress.stage, progress.total) == ("judge", 4)
            self.done.append(progress.done)

        def cancelled(self) -> bool:
            return self.done[-1] >= self.last

    whole, stopped = Watching(4), Watching(2)  # what is judged is saved
    save_model(topics, layer_of(engine), evidence=evidence(LEARNED), promote=False, observer=whole)
    assert whole.done == [1, 2, 3, 4]
    with pytest.raises(Cancelled, match="nothing was saved"):
        save_model(topics, layer_of(engine), evidence=evidence(LEARNED), observer=stopped)
    assert stopped.done == [1, 2]
    assert [model.version for model in topics.store.models()] == ["v1"]


def test_a_layer_made_by_hand_and_a_head_alone(engine: SearchEngine, topics: Collection) -> None:
    trained = learn(layer_of(engine))
    plain = dsearch.SearchLayer(topics.snapshot, trained.head, mode="dense")
    scores = [0.1 * i for i in range(20)]
    better = ExampleScores(scores, [one + 1 + 0.01 * i for i, one in enumerate(scores)], "reward")
    assert save_model(topics, plain, evidence=better).live == "v1"
    worse = ExampleScores(scores, [one - 1 for one in scores])
    assert save_model(topics, trained.head, evidence=worse).live is None
    assert save_model(topics, plain, evidence=lambda layer: [float(layer.head.key_delta.sum())] * 20)


def test_without_evidence_it_is_kept_and_does_not_answer(engine: SearchEngine, topics: Collection) -> None:
    saved = save_model(topics, learn(layer_of(engine), 1))
    assert (saved.version, saved.live) == ("v1", None)
    assert "nobody can tell" in saved.reason
    assert save_model(topics, layer_of(engine), accept=True).live == "v2"


def test_a_layer_learns_while_documents_come_and_go(engine: SearchEngine, topics: Collection) -> None:
    """Between the steps documents are added, replaced and deleted; an index is built in the middle."""
    layer = layer_of(engine)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    seen = []
    for step in range(30):
        topics.upsert([Document(f"new{step}", f"noise{step} alpha{step % 20}")])
        topics.upsert([Document(f"d{step % 20}-2", f"alpha{step % 20} changed{step}")])
        if step >= 2:
            topics.delete([f"new{step - 2}"])
        if step == 15:
            topics.refresh()
        layer.refresh()
        optimizer.zero_grad()
        loss = -likelihood(layer, LEARNED).mean()
        loss.backward()
        optimizer.step()
        names = {name for line in layer.ids(layer(layer.query_states(["noise"])).positions) for name in line}
        assert f"new{step}" in names
        assert f"new{step - 2}" not in names
        seen.append(loss.item())
    assert seen[-1] < seen[0] - 0.5
    assert save_model(topics, layer, evidence=evidence()).live == "v1"


def test_one_loss_goes_through_several_collections(engine: SearchEngine, topics: Collection) -> None:
    """A network before two layers learns with both heads; each head is saved to its own collection."""
    second = engine.create("second")
    second.ingest(topics.store.list(limit=100))
    layers = [dsearch.open_layer(engine, name, mode="dense") for name in ("topics", "second")]
    turn = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.eye_(turn.weight)
    optimizer = torch.optim.AdamW([*layers[0].parameters(), *layers[1].parameters()], lr=0.01)
    states = layers[0].query_states([TEXTS[id] for id in LEARNED])
    losses: list[float] = []
    for _ in range(40):
        optimizer.zero_grad()
        shares = []
        for layer in layers:
            out = layer(turn(states))
            relevant = [
                [name in JUDGED[id] for name in line]
                for id, line in zip(LEARNED, layer.ids(out.positions), strict=True)
            ]
            shares.append((out.weights * torch.tensor(relevant)).sum(1))
        loss = -(sum(shares) / 2).clamp_min(1e-9).log().mean()  # either collection may answer
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert turn.weight.grad is not None
    assert turn.weight.grad.abs().sum() > 0
    for collection, layer in zip((topics, second), layers, strict=True):
        assert save_model(collection, layer, evidence=evidence()).live == "v1"
    assert torch.equal(second.head("v1").key_delta, layers[1].head.key_delta)


def test_two_collections_may_share_a_head(engine: SearchEngine, topics: Collection) -> None:
    second = engine.create("second")
    second.ingest(topics.store.list(limit=100))
    first, other = (dsearch.open_layer(engine, name, mode="dense") for name in ("topics", "second"))
    other.head = first.head
    learn(first)
    for collection, layer in ((topics, first), (second, other)):
        assert save_model(collection, layer, evidence=evidence()).live == "v1"
    assert torch.equal(second.head("v1").key_delta, topics.head("v1").key_delta)


def test_a_run_of_ones_own_resumes_bit_for_bit(
    engine: SearchEngine, topics: Collection, tmp_path: Path
) -> None:
    def run(layer: CollectionLayer, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            (-likelihood(layer, LEARNED[step::4]).mean()).backward()
            optimizer.step()

    def begin() -> tuple[CollectionLayer, torch.optim.Optimizer]:
        layer = layer_of(engine, model="v0", encoder_training="all")
        return layer, torch.optim.AdamW(layer.parameters(), lr=0.01)

    whole, optimizer = begin()
    run(whole, optimizer, range(4))
    layer, optimizer = begin()
    run(layer, optimizer, range(2))
    checkpoint = {"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    topics.upsert([Document("late", "gamma9")])  # a layer of now has it, the interrupted one did not
    topics.delete(["late"])
    resumed, optimizer = begin()
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(stored["layer"])
    optimizer.load_state_dict(stored["optimizer"])
    run(resumed, optimizer, range(2, 4))
    wanted = whole.state_dict()
    assert resumed.state_dict().keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in resumed.state_dict().items())
    assert any(name.startswith("encoder.") for name in wanted)


def test_query_states_are_on_the_device_of_the_layer(engine: SearchEngine) -> None:
    layer = layer_of(engine).to("meta")  # a device that every machine has; it computes no numbers
    assert layer.query_states(["question1"]).device == layer.device == torch.device("meta")
    assert layer.with_model("v0").device == torch.device("meta")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("encoder_training", [None, "all"])
def test_a_layer_trained_on_a_gpu_is_judged_as_one_trained_here(
    engine: SearchEngine, topics: Collection, encoder_training: Any
) -> None:
    gains = []
    for device in ("cpu", "cuda"):
        layer = layer_of(engine, model="v0", encoder_training=encoder_training).to(device)
        saved = save_model(topics, learn(layer, 20), evidence=evidence(), promote=False)
        assert layer.device.type == device  # it stays where it was
        gains.append(topics.store.model(saved.version).record["gate"]["slices"][0]["after"])
    assert gains[1] == pytest.approx(gains[0], abs=0.002)


def test_a_layer_of_a_folder_follows_another_process(engine: SearchEngine, topics: Collection) -> None:
    layer = dsearch.open_layer(engine.home.path, "topics", mode="dense")
    first = layer.snapshot.generation.folder
    topics.upsert([Document("late", "late words")])
    assert layer.snapshot.sequence < topics.snapshot.sequence
    topics.refresh()
    layer.refresh()
    assert layer.snapshot.sequence == topics.snapshot.sequence
    assert layer.snapshot.generation.folder != first
    states = torch.as_tensor(HashingEncoder(64).encode_queries(["late words"]))
    assert layer.ids(layer(states).positions)[0][0] == "late"
    topics.refresh()
    topics.refresh()
    assert layer.snapshot.generation.folder.exists()  # leased
    assert not first.exists()  # no longer


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evidence": "better"}, "evidence of type str; use JudgedQueries"),
        ({"evidence": lambda _: [[1.0]]}, "scores of shape [1, 1]; give one number for each held-out"),
        ({"evidence": ExampleScores([1.0], [1.0, 2.0])}, "1 scores before and 2 after"),
        ({"evidence": ExampleScores([float("nan")], [1.0])}, "not finite"),
        ({"measure": "likelihood"}, "measure names the score of a function"),
        ({"risk": "reckless"}, "use one of cautious, balanced, bold"),
        ({"evidence": JudgedQueries({"q": "cat"}, {"q": {"nobody": 1}})}, "no usable training query"),
        ({"parent": "v7"}, "v7"),
    ],
)
def test_evidence_that_is_none_is_refused_and_nothing_is_kept(
    engine: SearchEngine, topics: Collection, unchecked: None, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(dsearch.DsearchError) as caught:
        save_model(topics, layer_of(engine), **given)
    assert message in str(caught.value)
    assert not topics.store.models()


def test_a_head_that_is_none_of_this_collection_is_refused(topics: Collection) -> None:
    with pytest.raises(DimensionMismatch, match="embeddings of 32 numbers"):
        save_model(topics, Head(32))
    broken = Head(64)
    broken.key_delta.data[0, 0] = torch.nan
    with pytest.raises(InvalidRequest, match="'key_delta' has numbers that are not finite"):
        save_model(topics, broken)
    with pytest.raises(InvalidRequest, match="this is a head"):
        save_model(topics, Head(64), evidence=lambda layer: [1.0])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_collection_and_no_layer_is_refused(engine: SearchEngine, topics: Collection) -> None:
    layer: Any = dsearch.open_layer(engine, "topics")
    for collection, given, message in (
        ("topics", layer, "a collection of type str; give one of an engine"),
        (topics, torch.nn.Linear(2, 2), "a layer of type Linear; give one of dsearch.open_layer"),
        (topics, "topics", "a layer of type str"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            dsearch.save_model(collection, given)  # type: ignore[arg-type]


def test_training_judgements_alone_are_no_evidence() -> None:
    with pytest.raises(InvalidRequest, match="training without judgements"):
        SavingJob(training={"q": {"d": 1}}).check()


def test_a_parent_of_more_than_a_head_is_not_lost(engine: SearchEngine, topics: Collection) -> None:
    topics.store.add_model("v1", "v0", {"format": 2, "files": {}, "head": {}, "query_encoder": {}})
    with pytest.raises(Conflict, match="query encoder of its own"):
        save_model(topics, layer_of(engine), parent="v1")


@pytest.mark.parametrize("method", ["lora", "all"])
def test_the_query_encoder_learns_with_the_layer_and_is_served(
    numbers: Collection, tmp_path: Path, tiny: Encoder, method: Literal["lora", "all"]
) -> None:
    before = [parameter.clone() for parameter in tiny.parameters()]
    queries = {f"q{i:02d}": f"question {i + PAIRS}" for i in range(PAIRS)}
    texts, judged = list(queries.values()), {f"q{i:02d}": {f"d{i}": 1.0} for i in range(PAIRS)}
    with SearchEngine(tmp_path / "home", readonly=True, encoder=lambda: tiny) as reader:
        layer = dsearch.open_layer(reader, "numbers", mode="dense", encoder_training=method)
        assert layer.encoder is not None
        optimizer = torch.optim.AdamW(layer.encoder.learning(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            out = layer(layer.query_states(texts))
            right = torch.as_tensor(out.positions == layer_positions(layer)[:, None])
            (-(out.weights * right).sum(1).clamp_min(1e-9).log().mean()).backward()
            optimizer.step()
        saved = save_model(numbers, layer, evidence=JudgedQueries(queries, judged))
        assert saved.live == "v1"
        served = numbers.query_states(texts, "dense")
        torch.testing.assert_close(served, layer.query_states(texts).detach(), rtol=0, atol=1e-5)
        hits = numbers.search_batch(texts, limit=1, mode="dense")
        with torch.no_grad():
            first = layer.ids(layer(layer.query_states(texts)).positions[:, :1])
        assert [[hit.id for hit in result.hits] for result in hits] == first
        assert all(torch.equal(one, other) for one, other in zip(tiny.parameters(), before, strict=True))
        with pytest.raises(Conflict, match="v1 has a query encoder of its own"):
            dsearch.open_layer(reader, "numbers", model="v1", encoder_training=method)
        with pytest.raises(Conflict, match="would lose"):
            save_model(numbers, dsearch.open_layer(reader, "numbers", model="v1"))


def learn_both_sides(layer: CollectionLayer, texts: list[str]) -> LearningEncoder:
    """By a loss whose gradients reach queries and documents."""
    assert layer.encoder is not None
    optimizer = torch.optim.AdamW(layer.encoder.learning(), lr=1e-2)
    for _ in range(12):
        optimizer.zero_grad()
        own = layer.encoder.embed([f"answer {i} red" for i in range(PAIRS)], "document")
        right = layer_positions(layer)
        table = torch.zeros(layer.snapshot.positions, own.shape[1]).index_copy(0, torch.as_tensor(right), own)
        out = layer(layer.query_states(texts), embed=lambda at, table=table: table[torch.as_tensor(at)])
        hit = torch.as_tensor(out.positions == right[:, None])
        (-(out.weights * hit).sum(1).clamp_min(1e-9).log().mean()).backward()
        optimizer.step()
    return layer.encoder


@pytest.mark.parametrize("method", ["lora", "all"])
def test_both_sides_of_the_encoder_learn_by_a_loss_of_ones_own(
    numbers: Collection, tmp_path: Path, tiny: Encoder, method: Literal["lora", "all"]
) -> None:
    """Documents are encoded again: judged, and served, by the encoder that learned."""
    queries = {f"q{i:02d}": f"question {i + PAIRS}" for i in range(PAIRS)}
    texts, judged = list(queries.values()), {f"q{i:02d}": {f"d{i}": 1.0} for i in range(PAIRS)}
    evidence = JudgedQueries(queries, judged)
    stages: list[str] = []
    with SearchEngine(tmp_path / "home", readonly=True, encoder=lambda: tiny) as reader:
        layer = dsearch.open_layer(reader, "numbers", mode="dense", encoder_training=method, candidates=PAIRS)
        encoder = learn_both_sides(layer, texts)

        class Watching(Observer):
            def progress(self, progress: Progress) -> None:
                stages.append(progress.stage)

        saved = save_model(
            numbers, layer, evidence=evidence, encode_documents=True, accept=True, observer=Watching()
        )
        assert saved.live == "v1"
        assert "encode" in stages
        assert numbers.has_documents_of("v1")
        states = torch.as_tensor(encoder.encode_queries(texts))
        own = torch.as_tensor(encoder.encode_documents([f"answer {i} red" for i in range(PAIRS)]))
        found = numbers.attend(texts, candidates=PAIRS, mode="dense")
        for ids, scores, wanted in zip(found.ids, found.output.scores, states @ own.T, strict=True):
            places = [int(id[1:]) for id in ids]
            torch.testing.assert_close(scores, wanted[places], rtol=0, atol=1e-4)
        # What was judged is what answers: nDCG@10 of one relevant document is 1 / log₂(1 + its rank).
        ranks = [
            [hit.id for hit in page.hits].index(f"d{i}") + 1
            for i, page in enumerate(numbers.search_batch(texts, limit=PAIRS))
        ]
        gains = [1 / np.log2(1 + rank) if rank <= 10 else 0.0 for rank in ranks]
        report = numbers.store.model("v1").record["gate"]
        assert report["slices"][0]["after"] == pytest.approx(np.mean(gains), abs=1e-4)
        assert report["slices"][0]["after"] > report["slices"][0]["before"]
        plain = dsearch.open_layer(reader, "numbers", model="v0")
        with pytest.raises(InvalidRequest, match="encode_documents without an encoder that learned"):
            save_model(numbers, plain, encode_documents=True)


@pytest.mark.parametrize("door", ["save_model", "dsearch.open"])
def test_a_function_scores_the_documents_that_are_encoded_again(
    tmp_path: Path, tiny: Encoder, door: str
) -> None:
    """The function sees the candidate as it will be served: the layer of the version gives its scores."""
    texts = [f"question {i + PAIRS}" for i in range(PAIRS)]

    def weights(layer: CollectionLayer) -> torch.Tensor:
        out = layer(layer.query_states(texts))
        hit = [[id == f"d{i}" for id in ids] for i, ids in enumerate(out.ids)]
        return (out.weights * torch.tensor(hit)).sum(1)

    with SearchEngine(tmp_path / "home", encoder=lambda: tiny) as engine:
        numbers = engine.create("numbers")
        numbers.ingest(number_documents())
        layer = dsearch.open_layer(engine, "numbers", mode="dense", encoder_training="lora", candidates=PAIRS)
        learn_both_sides(layer, texts)
        before = layer.snapshot
        how: Any = {"evidence": weights, "measure": "weight", "encode_documents": True, "promote": False}
        if door == "save_model":
            save_model(numbers, layer, **how)
        else:
            LocalEngine(engine).save_model("numbers", layer, **how)
        assert layer.snapshot is before
        assert layer.training
        report = numbers.store.model("v1").record["gate"]
        assert report["measure"] == "weight"
        served, live = layer.with_model("v1"), layer.with_model("v0")
        for name, of in (("before", live), ("after", served)):
            assert report["slices"][0][name] == pytest.approx(weights(of).mean().item(), abs=1e-4)
        old = weights(layer).mean().item()  # the layer itself, over the old embeddings
        assert abs(report["slices"][0]["after"] - old) > 1e-3
        assert report["slices"][0]["after"] > report["slices"][0]["before"]


def layer_positions(layer: CollectionLayer) -> np.ndarray:
    """Position of each pair's answer."""
    names = layer.ids(np.arange(layer.snapshot.positions)[None])[0]
    return np.array([names.index(f"d{i}") for i in range(PAIRS)])
