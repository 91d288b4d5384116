"""The loss of a ranking by two stages reaches the encoder by the tokens of queries, and is served so."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.second_stages import judged_collection

from dsearch.attention.late_interaction import START_STRENGTH
from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderTraining, LearningEncoder
from dsearch.encoder.encoder import TokenBatch
from dsearch.engine import Collection, SearchEngine, System, make_run
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.search.queries import tokens_of
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training import Student, run_training
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.finetune.stage_fit import stage_with
from dsearch.training.full_task import FullOptions, FullTask
from dsearch.training.head_task import PoolMatches, StageLoss
from dsearch.training.loop.distributed import Processes, Texts, cached_backward, cached_token_backward
from dsearch.training.losses.objectives import info_nce
from dsearch.training.registry import register, register_second_stage
from dsearch.types import Document, Query


@pytest.fixture
def judged(engine: SearchEngine) -> tuple[Collection, Examples]:
    collection, queries, judgements = judged_collection(engine)
    return collection, examples_from_judgements(collection, queries, judgements)


def learning(collection: Collection) -> LearningEncoder:
    return LearningEncoder(collection.encoder, EncoderTraining("all"))


@pytest.mark.parametrize("keywords", [True, False])
def test_it_is_the_cross_entropy_of_what_is_served(
    judged: tuple[Collection, Examples], keywords: bool
) -> None:
    """By words and meaning or by meaning alone; documents that are excluded for a query have no part."""
    collection, examples = judged
    which, head = [3, 8, 21], collection.head("v0")
    excluded = {8: {"d16", "d3"}}  # the first hits of the query
    hidden = [np.array([int(id[1:]) for id in excluded.get(at, ())], np.int64) for at in range(len(examples))]
    others = [((at + 1) % 60, grades) for at, grades in examples.relevant]  # first ones have no loss
    examples = replace(examples, hidden=hidden, relevant=others)
    encoded = learning(collection).embed_tokens([examples.texts[at] for at in which], "query")
    value = StageLoss(examples, keywords=keywords)(head, encoded, which).item()
    expected, mode = 0.0, "hybrid" if keywords else "dense"
    for at in which:
        hits = collection.search(examples.texts[at], mode=mode, stages=2, limit=100).hits
        hits = [hit for hit in hits if hit.id not in excluded.get(at, ())]
        (right,) = examples.relevant[at][0].tolist()
        named = collection.ids_at(examples.snapshot, np.array([[right]]))[0][0]
        logits = torch.tensor([hit.score for hit in hits], dtype=torch.float64) / 0.05
        place = [hit.id for hit in hits].index(named)
        expected -= logits.log_softmax(0)[place].item() / len(which)
    assert value == pytest.approx(expected, abs=1e-3)
    assert value > 1
    hidden[3] = examples.relevant[3][0]  # a query without an answer that it may see
    alone = encoded._replace(
        embeddings=encoded.embeddings[:1], states=encoded.states[:1], spans=encoded.spans[:1]
    )
    assert StageLoss(replace(examples, hidden=hidden), keywords=keywords)(head, alone, [3]).item() == 0.0


def test_it_reaches_the_encoder_by_tokens_alone(judged: tuple[Collection, Examples]) -> None:
    collection, examples = judged
    encoder, which = learning(collection), [1, 2, 5]
    (parameter,) = encoder.learning()
    with torch.no_grad():  # a token that is the stored one is at the top of its match, without a slope
        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    encoded = encoder.embed_tokens([examples.texts[at] for at in which], "query")
    encoded = encoded._replace(embeddings=encoded.embeddings.detach())
    loss = StageLoss(examples, keywords=True)(collection.head("v0"), encoded, which)
    (gradient,) = torch.autograd.grad(loss, parameter)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 1e-4
    with torch.no_grad():  # a small step down the gradient lowers the loss
        parameter -= gradient
    again = encoder.embed_tokens([examples.texts[at] for at in which], "query")
    again = again._replace(embeddings=encoded.embeddings)
    assert StageLoss(examples, keywords=True)(collection.head("v0"), again, which) < loss


def test_gradients_are_finite_beside_padding(
    engine: SearchEngine,
) -> None:
    collection = engine.create("wide")
    documents = [Document(f"d{i}", f"b{i % 11} the c{i % 13} e{i}", title=f"a{i % 7}") for i in range(240)]
    collection.ingest(documents, second_stage=True)
    queries = {"q0": "e3", "q1": "a1 b2 c3", "q2": "nothing known"}
    judgements = {"q0": {"d3": 1.0}, "q1": {"d8": 1.0, "d15": 2.0}, "q2": {"d9": 1.0}}
    examples = examples_from_judgements(collection, queries, judgements)
    head = copy.deepcopy(collection.head("v0")).requires_grad_(True)
    encoded = learning(collection).embed_tokens(examples.texts, "query")
    layer = SearchLayer(examples.snapshot, head)
    assert (layer(encoded.embeddings, examples.texts).positions == -1).any()
    StageLoss(examples, keywords=True)(head, encoded, [0, 1, 2]).backward()  # type: ignore[no-untyped-call]
    gradients = {name: of.grad for name, of in head.named_parameters() if of.grad is not None}
    assert {"log_temperature", "keyword_weight", "query_delta"} <= gradients.keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_a_version_answers_with_the_tokens_of_its_encoder(judged: tuple[Collection, Examples]) -> None:
    """The stage is fitted to them fold by fold, and the version that has it keeps the encoder."""
    collection, examples = judged
    queries = {f"q{at:02}": text for at, text in enumerate(examples.texts)}  # sorted as `examples`
    judgements = {f"q{i:02}": {f"d{i}": 1.0} for i in range(48)}
    job = TrainingJob(
        queries=queries, judgements=judgements, scope="query", encoder_training="all", epochs=1,
        encoder_learning_rate=0.01, stage_loss=True, accept=False,
    )  # fmt: skip
    learned = run_training(collection, job)
    result = learned.result
    assert result.encoder is not None  # type: ignore[union-attr]
    of_base = tokens_of(collection, examples.texts, examples.snapshot)
    for fold in result.folds:  # type: ignore[union-attr]
        assert fold.own is not None
        seen, tokens = fold.seen_by("head", examples, of_base)
        changed = np.abs(seen.states - examples.states).max(1) > 1e-6
        assert np.flatnonzero(changed).tolist() == sorted(fold.queries)
        assert np.array_equal(seen.states[fold.queries], fold.own.states)
        for at, (own, plain) in enumerate(zip(tokens, of_base, strict=True)):
            assert own.spans.tolist() == plain.spans.tolist()  # of the same text
            assert np.array_equal(own.states, plain.states) == (at not in fold.queries)
        assert fold.seen_by("start", examples, of_base) == (examples, of_base)
    registered = register(collection, result, accept=True)  # type: ignore[arg-type]
    base = collection.live_model
    assert registered.live == base
    weights = torch.zeros(11)
    weights[0] = 2.0
    stage = stage_with(weights)
    assert learned.second_stage is not None
    version = register_second_stage(collection, stage, learned.second_stage.record, registered).live
    assert version is not None
    assert version == collection.live_model != base
    assert collection.encoder_of(version).identity == collection.encoder_of(base).identity
    layer = SearchLayer(collection.snapshot, collection.head(version))
    text = "a3 c5"
    tokens = tokens_of(collection, [text], collection.snapshot, version)
    plain = tokens_of(collection, [text], collection.snapshot)
    assert np.abs(np.asarray(tokens[0].states) - np.asarray(plain[0].states)).max() > 1e-4
    states = collection.query_states([text], "hybrid", version)
    served = collection.search(text, model=version, limit=20).hits
    ranked = layer.ranked(states, [text], tokens)
    assert [hit.score for hit in served] == pytest.approx(ranked.scores[0, :20].tolist(), abs=1e-5)
    (run,) = make_run(collection, [Query("q", text)], System("hybrid", version)).values()
    assert [id for id, _ in run[:20]] == [hit.id for hit in served]


def test_of_two_encoders_every_pair_has_its_match(judged: tuple[Collection, Examples]) -> None:
    """γ Σ a m⁶ / Σ a, written out, by words alone; both sides have a gradient."""
    collection, examples = judged
    snapshot, encoder = examples.snapshot, learning(collection)
    texts, contents = ["a3 c5", "b1"], ["a3 the b1!", "of the", "c5 c5 x"]
    queries, documents = encoder.embed_tokens(texts, "query"), encoder.embed_tokens(contents, "document")
    terms = PoolMatches(snapshot)(queries, texts, documents, contents)
    assert snapshot.tokens is not None
    codec = snapshot.tokens.codec
    words = [["a3", "b1"], [], ["c5", "c5", "x"]]
    for row, text in enumerate(texts):
        idf = np.array([snapshot.keyword.idf(word) for word in text.split()])
        of_query = codec.projected(encoder.encode_tokens([text], "query")[1][0].states)
        for column, of_words in enumerate(words):
            expected = 0.0
            if of_words:
                of_document = codec.projected(encoder.encode_tokens([" ".join(of_words)])[1][0].states)
                best = np.maximum((of_query @ of_document.T).max(1), 0)
                expected = START_STRENGTH * float((idf * best**6).sum() / idf.sum())
            assert terms[row, column].item() == pytest.approx(expected, abs=1e-5)
    (of_weights,) = torch.autograd.grad(terms[0, 2] + terms[1, 2], encoder.learning())
    assert of_weights.abs().max() > 1e-6


@pytest.mark.parametrize("scope", ["head", "full"])
def test_it_is_refused_elsewhere(engine: SearchEngine, scope: Literal["head", "full"]) -> None:
    """In scope head nothing would learn by it; scope full needs tokens."""
    collection = judged_collection(engine)[0] if scope == "head" else engine.create("plain")
    job = TrainingJob(queries={"q": "a1"}, judgements={"q": {"d1": 1.0}}, stage_loss=True, scope=scope)
    with pytest.raises(InvalidRequest, match="stage_loss: for judged queries, in scope query"):
        run_training(collection, job)


def test_it_needs_tokens(engine: SearchEngine) -> None:
    collection = engine.create("plain")
    collection.ingest([Document("d", "a b")])
    examples = examples_from_judgements(collection, {"q": "a"}, {"q": {"d": 1.0}})
    with pytest.raises(InvalidRequest, match="in a collection without tokens"):
        StageLoss(examples, keywords=True)
    with pytest.raises(InvalidRequest, match="in a collection without tokens"):
        PoolMatches(examples.snapshot)


@pytest.mark.parametrize("chunk", [2, 50])
def test_gradients_in_chunks_are_those_of_the_whole(chunk: int) -> None:
    encoder = LearningEncoder(HashingEncoder(), EncoderTraining("all"))
    (parameter,) = encoder.learning()
    texts: list[Texts] = [(["a b", "c", "d e f"], "query"), (["b", "", "e e", "f a c"], "document")]

    def loss(batches: list[TokenBatch]) -> torch.Tensor:
        """Of embeddings and tokens of both lists; one text has no part."""
        queries, documents = batches
        pooled = torch.stack(
            [torch.cat([of, of.new_ones(1, of.shape[1])]).mean(0) for of in documents.states]
        )
        return (queries.embeddings[:2] @ pooled.mT).tanh().sum() + queries.states[2].square()[:, 3].sum()

    loss([encoder.embed_tokens(list_, role) for list_, role in texts]).backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    whole, parameter.grad = parameter.grad.clone(), None
    cached_token_backward(encoder, texts, loss, chunk=chunk)
    torch.testing.assert_close(parameter.grad, whole)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_a_chunk_has_texts_of_like_length(monkeypatch: pytest.MonkeyPatch, by_tokens: bool) -> None:
    """It is padded to its longest; both passes take the same chunks."""
    encoder = LearningEncoder(HashingEncoder(), EncoderTraining("all"))
    name, chunks = "embed_tokens" if by_tokens else "embed", []
    plain = getattr(LearningEncoder, name)

    def noted(self: LearningEncoder, texts: list[str], role: str) -> Any:
        chunks.append(texts)
        return plain(self, texts, role)

    monkeypatch.setattr(LearningEncoder, name, noted)
    texts: list[Texts] = [(["d", "a long text", "c", "a text as long"], "document")]
    if by_tokens:
        cached_token_backward(encoder, texts, lambda batches: batches[0].embeddings.sum(), chunk=2)
    else:
        cached_backward(encoder, texts, lambda parts: parts[0].sum(), chunk=2)
    assert chunks == 2 * [["d", "c"], ["a long text", "a text as long"]]


def test_a_step_of_both_encoders_is_the_loss_of_dense_and_tokens(judged: tuple[Collection, Examples]) -> None:
    collection, examples = judged
    losses = []
    for chunk in (1, 64):
        student = Student(Head(32), learning(collection))
        options = FullOptions(stage_loss=True, chunk=chunk)
        contents = lambda at: collection.store.contents(examples.snapshot.rows(at))  # noqa: E731
        task = FullTask(examples, contents, options, student, Processes())
        task.parameter_groups()
        batch = torch.tensor([1, 2, 5])
        pool = task.pool(batch, torch.Generator())
        losses.append(task.backward(batch, pool).item())
        gradient = student.encoder.learning()[0].grad  # type: ignore[union-attr]
        assert gradient is not None
        losses.append(gradient.norm().item())
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-4)
    encoder, texts = learning(collection), [examples.texts[at] for at in (1, 2, 5)]
    queries, documents = (
        encoder.embed_tokens(texts, "query"),
        encoder.embed_tokens(contents(pool), "document"),
    )
    scores = queries.embeddings @ documents.embeddings.mT
    scores = scores + PoolMatches(examples.snapshot)(queries, texts, documents, contents(pool))
    logits = scores / Head(32).temperature
    right = [int(np.searchsorted(pool, examples.relevant[at][0][0])) for at in (1, 2, 5)]
    target = torch.zeros_like(logits)
    target[range(3), right] = 1.0
    assert losses[0] == pytest.approx(info_nce(logits.log_softmax(-1), target).item(), rel=1e-4)


def test_several_processes_are_refused(judged: tuple[Collection, Examples]) -> None:
    collection, examples = judged
    student = Student(Head(32), learning(collection))
    two = Processes(count=2)
    with pytest.raises(InvalidRequest, match="stage_loss in several processes"):
        FullTask(examples, lambda _: [], FullOptions(stage_loss=True), student, two)
