"""Likelihoods of questions as a teacher's scores, and the language model that gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled, InvalidRequest, InvalidSource
from dsearch.evaluation import read_qrels
from dsearch.evaluation.judged_data import read_judged_data
from dsearch.jobs import TrainingJob
from dsearch.training import QuestionWriter, run_training, score_questions, synthesize
from dsearch.training.data import writer as writer_module
from dsearch.training.data.synthesis import stored_questions
from dsearch.types import Document, Progress

FILLER = "and then some more words follow that make it long enough to be asked about at all"


class WordModel:
    """Asks for the river of a passage, and finds a question likely where its river stands."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def questions(self, passages: Sequence[str]) -> list[str]:
        return [f"where is {passage.split()[0]}?" for passage in passages]

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.pairs += pairs
        return [-1.0 if question.split()[-1][:-1] in passage.split() else -9.0 for question, passage in pairs]


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=lambda: HashingEncoder(64)) as engine:
        collection = engine.create("rivers")
        collection.ingest([Document(f"d{n}", f"river{n} bridge{n} {FILLER}") for n in range(30)])
        yield collection


def test_questions_are_scored_by_their_best_documents(collection: Collection, tmp_path: Path) -> None:
    questions, path, progress = tmp_path / "questions.jsonl", tmp_path / "teacher.tsv", list[Progress]()
    model = WordModel()
    accepted = synthesize(collection, model, questions).accepted
    result = score_questions(
        collection, model, questions, path, documents=3, batch_size=2, on_progress=progress.append
    )
    assert (result.questions, result.scores, len(model.pairs)) == (accepted, 3 * accepted, 3 * accepted)
    assert (progress[-1].done, progress[-1].total) == (accepted, accepted)
    scores = read_qrels(path)
    assert scores["where is river7?"]["d7"] == -1.0
    assert sorted(scores["where is river7?"].values()) == [-9.0, -9.0, -1.0]

    # What dsearch train --data questions.jsonl --teacher teacher.tsv --objective teacher does.
    judged = read_judged_data(questions, "train")
    job = TrainingJob(
        queries={query.id: query.text for query in judged.queries},
        judgements={pair.query: {pair.document: pair.grade} for pair in judged.pairs},
        teacher=scores,
        objective="teacher",
        tune=False,
        epochs=2,
    )
    assert run_training(collection, job).register(collection, job).version == "v1"


def test_scoring_continues_behind_what_is_written(collection: Collection, tmp_path: Path) -> None:
    questions, whole, parts = (tmp_path / name for name in ("questions.jsonl", "whole.tsv", "parts.tsv"))
    model = WordModel()
    synthesize(collection, model, questions, documents=8)
    score_questions(collection, model, questions, whole)
    polls = iter([False, False, False, True])
    with pytest.raises(Cancelled, match="stopped after 3 questions; called again it goes on"):
        score_questions(collection, model, questions, parts, cancelled=lambda: next(polls))
    parts.write_bytes(parts.read_bytes()[:-7])  # a kill in the middle of the third question's last line
    model.pairs.clear()
    result = score_questions(collection, model, questions, parts)
    assert parts.read_text() == whole.read_text()
    assert len(model.pairs) == 4 * (result.questions - 2)
    score_questions(collection, model, questions, parts)
    assert len(model.pairs) == 4 * (result.questions - 2)  # nothing is left to do


def test_each_question_is_written_when_it_is_scored_and_only_accepted_ones_are(
    collection: Collection, tmp_path: Path
) -> None:
    """A kill loses none of them: the file has them while the next one is read."""
    questions, path = tmp_path / "questions.jsonl", tmp_path / "teacher.tsv"
    line = '{{"query": "where is river{0}?", "document": "d{0}", "grade": {1}, "rank": {1}}}\n'
    questions.write_text("".join(line.format(n, int(n != 2)) for n in range(4)))
    written: list[set[str]] = []

    class Exact(WordModel):
        def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            written.append(set(read_qrels(path)) if path.stat().st_size else set())
            return [-1.23456 - at for at, _ in enumerate(pairs)]

    score_questions(collection, Exact(), questions, path, documents=2)
    asked = [f"where is river{n}?" for n in (0, 1, 3)]
    assert written == [set(), {asked[0]}, {*asked[:2]}]
    assert read_qrels(path).keys() == {*asked}
    assert sorted(read_qrels(path)[asked[0]].values()) == pytest.approx([-2.23456, -1.23456], abs=5e-5)


def test_a_question_whose_document_has_gone_has_no_scores(collection: Collection, tmp_path: Path) -> None:
    questions, path = tmp_path / "questions.jsonl", tmp_path / "teacher.tsv"
    accepted = synthesize(collection, WordModel(), questions, documents=4).accepted
    gone = next(line["document"] for line in stored_questions(questions) if line["grade"])
    collection.delete([gone])
    result = score_questions(collection, WordModel(), questions, path, documents=2)
    assert (result.questions, result.scores) == (accepted - 1, 2 * (accepted - 1))


def test_other_files_and_numbers_are_refused_for_scores(collection: Collection, tmp_path: Path) -> None:
    questions, path = tmp_path / "questions.jsonl", tmp_path / "teacher.tsv"
    synthesize(collection, WordModel(), questions, documents=2)
    with pytest.raises(InvalidRequest, match="documents=1, batch_size=8; use 2 or more documents"):
        score_questions(collection, WordModel(), questions, path, documents=1)
    path.write_text("mine\n")
    with pytest.raises(InvalidSource, match="not a file of a teacher's scores"):
        score_questions(collection, WordModel(), questions, path)


@pytest.fixture(scope="module")
def writer() -> QuestionWriter:
    """A writer with a model of two layers, random, over bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({letter: id for id, letter in enumerate(["<pad>", *letters])}, [])
    bytes_of = tokenizers.Tokenizer(model)
    bytes_of.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of.decoder = tokenizers.decoders.ByteLevel()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
    )
    writer = QuestionWriter.__new__(QuestionWriter)
    writer.tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_of, pad_token="<pad>")
    writer.tokenizer.padding_side = "left"
    writer.model = LlamaForCausalLM(config).eval()
    writer._read = None
    return writer


PASSAGES = ["The Rhine is a river.", "Bees dance.", "A bridge of nine arches crosses the gorge."]


def log_probabilities(writer: QuestionWriter, prompt: str, behind: Sequence[int] = ()) -> torch.Tensor:
    """Of the token behind each token of a prompt, all of it read at once, without padding and cache."""
    ids = torch.tensor([[*writer._ids(writer_module._EXAMPLES + prompt), *behind]])
    with torch.no_grad():
        return writer.model(ids).logits[0].log_softmax(-1)


def test_likelihoods_are_those_of_each_prompt_by_itself(writer: QuestionWriter) -> None:
    questions = ["Where is the Rhine?", "Who dances so well in the dark hive?", "How many?"]
    likelihoods = writer.likelihoods(list(zip(questions, PASSAGES, strict=True)))
    for question, passage, likelihood in zip(questions, PASSAGES, likelihoods, strict=True):
        target = torch.tensor(writer._ids(f" {question}"))
        steps = log_probabilities(writer, f"{writer._prompt(passage)} {question}")[-len(target) - 1 : -1]
        assert likelihood == pytest.approx(steps.gather(1, target[:, None]).sum().item(), abs=1e-3)


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_questions_are_written_apart_from_what_any_passage_would_give(
    writer: QuestionWriter, guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_GUIDANCE", guidance)
    monkeypatch.setattr(writer_module, "_WRITTEN_TOKENS", 6)
    monkeypatch.setattr(writer_module, "question_in", lambda text: text)
    written = writer.questions(PASSAGES)
    for passage, text in zip(PASSAGES, written, strict=True):
        tokens: list[int] = []
        while len(tokens) < 6:
            by_passage = log_probabilities(writer, writer._prompt(passage), tokens)[-1]
            blank = log_probabilities(writer, writer_module._BLANK, tokens)[-1]
            tokens.append(int((blank + guidance * (by_passage - blank)).argmax()))
        assert text == writer.tokenizer.decode(tokens)


def test_a_batch_is_written_until_its_last_question_ends(
    writer: QuestionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(tokens: torch.Tensor, *, skip_special_tokens: bool) -> list[str]:
        words = ["what", "else", "is", "there", "now?", "more", "words"][: tokens.shape[1]]
        return ["is it a bridge?", " ".join(words)]

    monkeypatch.setattr(writer.tokenizer, "batch_decode", decoded)
    assert writer.questions(PASSAGES[:2]) == ["is it a bridge?", "what else is there now?"]
