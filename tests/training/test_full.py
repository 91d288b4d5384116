"""Scope `full`: exact gradients at any memory and number of processes, negatives that are no answers."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.paths import SUPPORT
from support.patience import LATEST_S
from support.ports import free_port
from support.sizes import by_size
from support.training.numbers import PAIRS, number_examples
from support.training.observers import StopWhen
from support.warm.processes import warm_start

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import Encoder, EncoderTraining, LearningEncoder
from dsearch.engine import Collection
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.training import Examples, RunFolder, Student, Watch
from dsearch.training import full_task as full
from dsearch.training.data.examples import mined_negatives
from dsearch.training.full_task import Contents, FullOptions, FullTask, MovingIndex, train_full
from dsearch.training.gate.held_out import HeldOut
from dsearch.training.head_task import _FrozenDocuments
from dsearch.training.loop.distributed import Processes, cached_backward
from dsearch.training.loop.loop import Epoch
from dsearch.training.options import TrainingOptions

SCRIPT = SUPPORT / "training" / "process_gradients.py"


@pytest.fixture
def contents(numbers: Collection, examples: Examples) -> Contents:
    return lambda at: numbers.store.contents(examples.snapshot.rows(at))


def new_task(
    examples: Examples, contents: Contents, tiny: Encoder, options: FullOptions
) -> tuple[FullTask, Student]:
    student = Student(Head(16), LearningEncoder(tiny, EncoderTraining("all")))
    task = FullTask(examples, contents, options, student, Processes())
    task.parameter_groups()
    return task, student


def gradients(student: Student) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}


# ---- the gradient


@pytest.mark.parametrize("chunk", [1, 3, 7, 14])
def test_the_gradient_is_that_of_one_big_batch(
    examples: Examples, contents: Contents, tiny: Encoder, chunk: int
) -> None:
    options = FullOptions(chunk=chunk, negatives=0)
    examples = replace(examples, texts=[f"question {i}" for i in range(PAIRS)])  # keywords know the answers
    task, student = new_task(examples, contents, tiny, options)
    batch = torch.arange(3, 17)
    pool = task.pool(batch, torch.Generator())
    value = task.backward(batch, pool)
    cached = gradients(student)

    student.zero_grad()
    head, encoder = student.head, student.encoder
    assert encoder is not None
    queries = encoder.embed([examples.texts[i] for i in batch.tolist()], "query")
    documents = encoder.embed(contents(pool), "document")
    logits = queries @ documents.T / head.temperature  # keywords have no part
    wanted = torch.tensor([list(pool).index(examples.relevant[i][0][0]) for i in batch.tolist()])
    plain = torch.nn.functional.cross_entropy(logits, wanted)  # one answer each: InfoNCE is cross-entropy
    plain.backward()
    assert value.item() == pytest.approx(plain.item(), abs=1e-5)
    direct = gradients(student)
    assert cached.keys() == direct.keys()
    assert len(cached) > 30
    for name in cached:
        torch.testing.assert_close(cached[name], direct[name], atol=1e-5, rtol=1e-5)
    assert max(gradient.abs().max() for gradient in direct.values()) > 1e-2


def test_memory_holds_a_chunk_whatever_the_batch(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = LearningEncoder(tiny, EncoderTraining("all"))
    sizes: list[int] = []
    without: list[int] = []
    plain = LearningEncoder.embed

    def counted(self: LearningEncoder, texts: list[str], role: str) -> torch.Tensor:
        (sizes if torch.is_grad_enabled() else without).append(len(texts))
        return plain(self, texts, role)  # type: ignore[arg-type]

    monkeypatch.setattr(LearningEncoder, "embed", counted)
    texts = [f"answer {i} red" for i in range(50)]
    cached_backward(encoder, [(texts, "document")], lambda parts: parts[0].sum(), chunk=8)
    assert max(sizes) == 8
    assert sum(sizes) == sum(without) == 50
    sizes.clear()
    without.clear()
    cached_backward(encoder, [(texts, "document")], lambda parts: parts[0].sum(), chunk=50)
    assert (sizes, without) == ([50], [])  # they fit: nothing is encoded twice


@pytest.mark.crash
@pytest.mark.parametrize("count", [2])
def test_processes_together_have_the_gradient_of_one(
    numbers: Collection, tiny_folder: Path, tmp_path: Path, count: int
) -> None:
    def results(of: int) -> list[dict[str, torch.Tensor]]:
        port = free_port()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        files = [tmp_path / f"{of}-{rank}" for rank in range(of)]
        command = [sys.executable, SCRIPT, tiny_folder, tmp_path / "home"]
        started = [
            warm_start()([*map(str, [*command, rank, of, port, file])], env=environment)
            for rank, file in enumerate(files)
        ]
        assert [process.wait(LATEST_S) for process in started] == [0] * of
        return [load_file(file) for file in files]

    (alone,) = results(1)
    for one in results(count):
        for name in one:
            # What has no part in an embedding (BERT's pooler) has no gradient alone, and zeros among more.
            expected = alone.get(name, torch.zeros_like(one[name]))
            torch.testing.assert_close(one[name], expected, atol=1e-5, rtol=1e-5)
        assert alone.keys() <= one.keys()
    assert max(tensor.abs().max() for tensor in alone.values()) > 1e-2


def test_grades_are_shared_out_wherever_an_answer_stands_in_the_pool(
    examples: Examples, contents: Contents, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query with fewer answers than another is padded, and the first document of the pool is no padding."""
    graded = [((0,), (2.0,)), ((0, 5, 7), (1.0, 2.0, 1.0))]
    relevant = [(np.array(at), np.array(grades, np.float32)) for at, grades in graded]
    task, _ = new_task(replace(examples, relevant=relevant * (PAIRS // 2)), contents, tiny, FullOptions())
    targets: list[torch.Tensor] = []

    def cached(_: Any, texts: list[Any], loss: Any, **__: Any) -> torch.Tensor:
        return loss([torch.zeros(len(of), 16) for of, _ in texts])

    monkeypatch.setattr(full, "cached_backward", cached)
    monkeypatch.setattr(full, "info_nce", lambda mixed, target: targets.append(target) or mixed.sum())
    task.backward(torch.tensor([0, 1]), np.array([0, 5, 7]))
    assert targets[0].tolist() == [[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]]


@pytest.mark.parametrize("scope", ["full", "query"])
def test_a_step_of_the_encoder_is_of_bounded_length(
    examples: Examples, contents: Contents, tiny: Encoder, scope: str
) -> None:
    """At a low temperature the gradient would be many times as long."""
    student = Student(Head(16), LearningEncoder(tiny, EncoderTraining("all")))
    with torch.no_grad():
        student.head.log_temperature.fill_(-7.0)
    options = TrainingOptions(scope="query", objective="listwise")
    task: Any = (
        FullTask(examples, contents, FullOptions(), student, Processes())
        if scope == "full"
        else _FrozenDocuments(examples, options, student, "cpu")
    )
    task.parameter_groups()
    task.step(torch.arange(6), torch.Generator().manual_seed(0))
    assert student.encoder is not None
    lengths = [one.grad.norm() for one in student.encoder.learning() if one.grad is not None]
    assert torch.stack(lengths).norm().item() == pytest.approx(1.0, abs=1e-3)


# ---- negatives


@settings(max_examples=by_size(10, 100))
@given(st.integers(0, 10_000), st.integers(0, 5), st.floats(0.1, 1.5))
def test_negatives_are_no_answers_and_stand_below_the_margin(seed: int, count: int, margin: float) -> None:
    generator = np.random.default_rng(seed)
    candidates = np.stack([generator.permutation(20)[:8] for _ in range(4)])
    scores = generator.uniform(0, 1, (4, 8)).astype(np.float32)
    answers = [generator.choice(20, 2, replace=False) for _ in range(4)]
    best = generator.uniform(0.2, 1, 4).astype(np.float32)

    def mined() -> list[np.ndarray]:
        drawn = torch.Generator().manual_seed(seed)
        return mined_negatives(candidates, scores, answers, best, count=count, margin=margin, generator=drawn)

    found = mined()
    for row, negatives in enumerate(found):
        assert not set(negatives) & set(answers[row])
        of = dict(zip(candidates[row].tolist(), scores[row].tolist(), strict=True))
        assert all(of[at] < margin * best[row] for at in negatives.tolist())
        possible = [at for at, score in of.items() if score < np.float32(margin) * best[row]]
        left = [at for at in possible if at not in answers[row]]
        assert abs(len(negatives) - min(count, len(left))) <= 0 or margin * best[row] in of.values()
    assert all((a == b).all() for a, b in zip(found, mined(), strict=True))


def test_the_pool_holds_answers_and_negatives_once(
    examples: Examples, contents: Contents, tiny: Encoder
) -> None:
    options = FullOptions(negatives=3, depth=PAIRS, margin=2.0)
    task, _ = new_task(examples, contents, tiny, options)
    batch = torch.arange(4)
    pool = task.pool(batch, torch.Generator().manual_seed(0))
    assert len(set(pool.tolist())) == len(pool)
    answers = {int(examples.relevant[i][0][0]) for i in range(4)}
    assert answers < set(pool.tolist())
    none, _ = new_task(examples, contents, tiny, replace(options, margin=1e-9))
    assert set(none.pool(batch, torch.Generator()).tolist()) == answers
    hidden = replace(examples, hidden=[np.arange(PAIRS) for _ in range(PAIRS)])
    all_hidden, _ = new_task(hidden, contents, tiny, options)
    assert set(all_hidden.pool(batch, torch.Generator()).tolist()) == answers


def test_a_negative_is_measured_by_the_best_answer_of_its_query(
    examples: Examples, contents: Contents, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [(np.array([i, (i + 7) % PAIRS]), np.ones(2, np.float32)) for i in range(PAIRS)]
    task, _ = new_task(replace(examples, relevant=two), contents, tiny, FullOptions(negatives=2))
    best: list[np.ndarray] = []

    def noted(*given: Any, **_: Any) -> list[np.ndarray]:
        best.append(given[3])
        return []

    monkeypatch.setattr(full, "mined_negatives", noted)
    task.pool(torch.arange(3), torch.Generator())
    stored = examples.snapshot.embeddings(np.arange(PAIRS))
    products = np.array([[examples.states[i] @ stored[at] for at in two[i][0]] for i in range(3)])
    np.testing.assert_allclose(best[0], products.max(1), rtol=1e-5)
    assert (products.max(1) > products.min(1)).all()


def test_deleted_documents_are_no_negatives(numbers: Collection, contents: Contents, tiny: Encoder) -> None:
    numbers.delete(["d20", "d21"])
    examples = number_examples(numbers)
    examples = examples.subset(range(4))
    task, _ = new_task(examples, contents, tiny, FullOptions(negatives=PAIRS, depth=PAIRS, margin=99.0))
    pool = set(task.pool(torch.arange(4), torch.Generator().manual_seed(0)).tolist())
    assert len(pool) == PAIRS - 2
    assert pool == {*examples.snapshot.visible().tolist()}


def test_several_processes_keep_their_chunks(examples: Examples, contents: Contents, tiny: Encoder) -> None:
    """One alone with smaller ones would wait for the others at another place."""
    alone, student = new_task(examples, contents, tiny, FullOptions(chunk=4))
    assert alone.lessen() == "2 texts at a time from now on"
    together = FullTask(examples, contents, FullOptions(chunk=4), student, Processes(count=2))
    assert together.lessen() is None


# ---- the index


def test_the_index_is_new_after_a_round(examples: Examples, contents: Contents, tiny: Encoder) -> None:
    encoder = LearningEncoder(tiny, EncoderTraining("all"))
    with torch.no_grad():
        for parameter in encoder.learning():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    stored = examples.snapshot.embeddings(np.arange(PAIRS))

    def index(steps: int) -> MovingIndex:
        return MovingIndex(
            stored, np.arange(PAIRS), contents, steps_a_round=steps, chunk=5, processes=Processes()
        )

    moving, renewed, still = index(5), index(5), index(0)
    queries = torch.as_tensor(encoder.encode_queries(examples.texts))
    assert moving.staleness(encoder, queries) > 0.1
    before = moving.nearest(queries, 10)
    for _ in range(5):
        moving.step(encoder)
        still.step(encoder)
    renewed.renew(encoder)
    torch.testing.assert_close(moving.embeddings, renewed.embeddings, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(still.embeddings.numpy(), stored)
    assert moving.staleness(encoder, queries) == 0.0
    after = moving.nearest(queries, 10)
    changed = np.mean(
        [len(set(a) - set(b)) / 10 for a, b in zip(before.tolist(), after.tolist(), strict=True)]
    )
    assert index(5).staleness(encoder, queries) == pytest.approx(changed)  # all 24 are over-retrieved


@pytest.mark.parametrize("negatives", [0, 1])
def test_the_index_moves_where_negatives_come_from_it(
    examples: Examples, contents: Contents, tiny: Encoder, negatives: int
) -> None:
    task, student = new_task(examples, contents, tiny, FullOptions(negatives=negatives, steps_a_round=2))
    assert student.encoder is not None
    with torch.no_grad():
        for parameter in student.encoder.learning():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    before = task.index.embeddings.clone()
    task.step(torch.arange(4), torch.Generator().manual_seed(0))
    changed = (before != task.index.embeddings).any(1)
    assert changed.sum() == (PAIRS // 2 if negatives else 0)


# ---- training


def test_it_learns_and_tells_how_stale_its_index_is(
    examples: Examples, contents: Contents, tiny: Encoder
) -> None:
    told: list[float] = []
    weights = [parameter.clone() for parameter in tiny.parameters()]

    def on_epoch(epoch: Epoch, student: Student, index: MovingIndex, staleness: float) -> bool:
        told.append(staleness)
        return True

    options = FullOptions(
        epochs=30,
        batch_size=8,
        encoder_learning_rate=2e-2,
        negatives=2,
        margin=5.0,
        steps_a_round=6,
        held_out=0,
    )
    trained = train_full(examples, contents, options, encoder=tiny, on_epoch=on_epoch)
    assert all(torch.equal(a, b) for a, b in zip(tiny.parameters(), weights, strict=True))
    assert len(told) == 30
    assert 0 < max(told) <= 1
    trained.index.renew(trained.student.encoder)  # type: ignore[arg-type]
    held_out = HeldOut(examples, examples)
    before = held_out.answers(Head(16)).all.mean()
    after = held_out.answers(
        trained.student.head, trained.student.states(examples), trained.index.embeddings
    ).all.mean()
    assert after > before + 0.2
    assert torch.equal(trained.student.head.query_delta, torch.zeros(1, 16, 16))


def test_it_goes_on_after_a_cancellation_to_the_same_end(
    examples: Examples, contents: Contents, tiny: Encoder, tmp_path: Path
) -> None:
    options = FullOptions(epochs=3, batch_size=5, encoder_learning_rate=1e-3, negatives=1, steps_a_round=4)
    whole = train_full(examples, contents, options, encoder=tiny)
    steps = 0

    def after_seven() -> bool:
        nonlocal steps
        steps += 1
        return steps > 7

    stage = RunFolder(tmp_path / "run", {}).stage("train")
    with pytest.raises(Cancelled):
        train_full(
            examples,
            contents,
            options,
            encoder=tiny,
            watch=Watch(observer=StopWhen(after_seven), keeper=stage),
        )
    done = train_full(examples, contents, options, encoder=tiny, watch=Watch(keeper=stage))
    for (name, one), other in zip(
        whole.student.state_dict().items(), done.student.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    assert torch.equal(whole.index.embeddings, done.index.embeddings)


def test_half_precision_trains_too(examples: Examples, contents: Contents, tiny: Encoder) -> None:
    options = FullOptions(epochs=1, precision="bfloat16", encoder_learning_rate=1e-3)
    trained = train_full(examples, contents, options, encoder=tiny)
    assert all(torch.isfinite(parameter).all() for parameter in trained.student.parameters())


def test_a_transformer_is_compiled_for_texts_of_any_length_if_wanted(
    examples: Examples, contents: Contents, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []

    def compiled(call: Any, *, dynamic: bool) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            runs.append(dynamic)
            return call(*arguments, **options)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    found = []
    for wanted in (False, True):
        task, student = new_task(examples, contents, tiny, FullOptions(compiled=wanted))
        task.backward(torch.arange(3), task.pool(torch.arange(3), torch.Generator().manual_seed(0)))
        found.append(gradients(student))
        assert bool(runs) == wanted
    assert set(runs) == {True}
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_an_encoder_without_a_transformer_cannot_be_compiled(tiny: Encoder) -> None:
    for inside in (SimpleNamespace(), SimpleNamespace(model=[torch.nn.Linear(2, 2)])):
        encoder: Any = SimpleNamespace(encoder=inside, identity=tiny.identity)
        with pytest.raises(InvalidRequest, match="has no transformer to compile; leave compiled out"):
            full._compile(encoder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk=0; use an integer of at least 1"),
        ({"negatives": -1}, "negatives=-1; use an integer of at least 0"),
        ({"margin": 0.0}, "margin=0.0; use a number above 0"),
        ({"held_out": 1}, "held_out=1; use 2 or more, or 0"),
        ({"precision": "int8"}, "precision='int8'; use float32 or bfloat16"),
        ({"encoder_method": "some"}, "method='some'"),
        ({"learning_rate": 2.0}, "learning_rate=2.0"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        FullOptions(**options)  # type: ignore[arg-type]
