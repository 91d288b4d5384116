"""Rerankers are those of sentence-transformers; what is none is refused by its files, before it is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from support.training.rerankers import cross_encoder_folder, multi_vector_folder

from dsearch.encoder import reranker
from dsearch.encoder.reranker import load_reranker
from dsearch.encoder.weights import find_weights
from dsearch.errors import InvalidRequest, MissingExtra, RerankerUnavailable
from dsearch.lru_cache import LruCache

QUERY, TEXTS = "oat bread", ["bread of oats", "a mango", "cheese with bread and a long text behind " * 30]


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranker, "_loaded", LruCache(reranker.MOST_MODELS))  # pyright: ignore[reportPrivateUsage]


def test_a_cross_encoder_gives_its_logits(tmp_path: Path, unloaded: None) -> None:
    folder = cross_encoder_folder(tmp_path / "cross")
    loaded = load_reranker(str(folder))
    own = sentence_transformers.CrossEncoder(str(folder), device="cpu", local_files_only=True)
    expected = own.predict([(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity())
    scores = loaded.scores(QUERY, TEXTS)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert np.ptp(scores) > 1e-3
    np.testing.assert_allclose(loaded.scores(QUERY, TEXTS[:1]), scores[:1], atol=1e-5)
    assert loaded.scores(QUERY, []).shape == (0,)
    assert (loaded.files.kind, len(loaded.files.sha256)) == ("cross-encoder", 64)


def test_a_multi_vector_encoder_gives_its_similarity(tmp_path: Path, unloaded: None) -> None:
    folder = multi_vector_folder(tmp_path / "multi")
    loaded = load_reranker(str(folder))
    own = sentence_transformers.MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    expected = own.similarity(own.encode_query([QUERY]), own.encode_document(TEXTS))[0]
    np.testing.assert_allclose(loaded.scores(QUERY, TEXTS), np.asarray(expected), atol=1e-4)
    assert loaded.files.kind == "multi-vector"


def test_a_folder_is_loaded_once_by_any_of_its_names(
    tmp_path: Path, unloaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cross_encoder_folder(tmp_path / "cross")
    first = load_reranker(str(tmp_path / "cross"))
    monkeypatch.chdir(tmp_path)
    assert load_reranker("cross") is first
    assert first.files.name == str(tmp_path / "cross")
    for number in range(reranker.MOST_MODELS):
        load_reranker(str(cross_encoder_folder(tmp_path / f"other{number}", seed=number + 1)))
    assert load_reranker("cross") is not first


def test_the_one_that_was_used_last_stays(tmp_path: Path, unloaded: None) -> None:
    folders = [str(cross_encoder_folder(tmp_path / f"r{number}", seed=number)) for number in range(3)]
    assert reranker.MOST_MODELS == 2
    first, second = map(load_reranker, folders[:2])
    assert load_reranker(folders[0]) is first
    load_reranker(folders[2])  # the second goes
    assert load_reranker(folders[0]) is first
    assert load_reranker(folders[1]) is not second


def test_one_that_was_trained_again_is_loaded_again_unless_the_earlier_one_is_wanted(
    tmp_path: Path, unloaded: None
) -> None:
    folder = cross_encoder_folder(tmp_path / "cross")
    first = load_reranker(str(folder))
    cross_encoder_folder(folder, seed=1)
    earlier, own = first.files.sha256, reranker.find_reranker(str(folder), fetch=False).sha256
    assert load_reranker(str(folder), sha256=earlier) is first  # a version goes on with it
    second = load_reranker(str(folder), sha256=own)
    assert second.files.sha256 == own != earlier
    assert load_reranker(str(folder)) is load_reranker(str(folder), sha256=earlier) is second
    assert not np.allclose(second.scores(QUERY, TEXTS), first.scores(QUERY, TEXTS))
    folder.rename(tmp_path / "elsewhere")
    assert load_reranker(str(folder)) is second  # it is in memory


def test_an_encoder_is_no_reranker() -> None:
    """sentence-transformers would put a class head of random numbers on it."""
    folder = find_weights("all-MiniLM-L6-v2").folder
    with pytest.raises(InvalidRequest, match=r"is .*; use a CrossEncoder or a MultiVectorEncoder"):
        load_reranker(str(folder))


def test_an_embedding_model_that_is_a_language_model_is_no_reranker(tmp_path: Path) -> None:
    """What it says that it is goes before what its architecture could be."""
    files = {
        "config.json": json.dumps({"architectures": ["Qwen3ForCausalLM"]}),
        "config_sentence_transformers.json": json.dumps({"model_type": "SentenceTransformer"}),
        "model.safetensors": "",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidRequest, match="is SentenceTransformer; use a CrossEncoder"):
        reranker.find_reranker(str(tmp_path), fetch=False)


def test_several_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has 3 labels; use a model with one"):
        load_reranker(str(cross_encoder_folder(tmp_path / "labels", labels=3)))


def test_a_search_asks_no_hub() -> None:
    with pytest.raises(RerankerUnavailable, match="hf download nobody/nothing, or search with stages=1"):
        load_reranker("nobody/nothing")


def test_a_training_says_that_the_hub_did_not_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(name: str, *, local_files_only: bool, **_: object) -> str:
        asked.append(local_files_only)
        raise OSError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr(reranker, "_out_of_reach", lambda: None)
    with pytest.raises(RerankerUnavailable, match="the Hugging Face hub did not give it"):
        load_reranker("nobody/nothing", fetch=True)
    assert asked == [False]


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(name: str, *, local_files_only: bool, **_: object) -> str:
        asked.append(local_files_only)
        raise OSError(name)

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(RerankerUnavailable, match=r"the Hugging Face hub .* is out of reach"):
        load_reranker("nobody/nothing", fetch=True)
    assert asked == [True]  # its cache alone


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name_is_no_folder(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(cross_encoder_folder(tmp_path / "cross"))
    with pytest.raises(InvalidRequest, match=r"reranker='.*'; give the name of a CrossEncoder"):
        load_reranker(name)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(RerankerUnavailable, match="no weights"):
        load_reranker(str(tmp_path))


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path / "cut")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(RerankerUnavailable, match="does not load as a CrossEncoder"):
        load_reranker(str(folder))


def test_a_kind_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cross_encoder_folder(tmp_path / "named")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "ColBERT"}))
    monkeypatch.delattr(sentence_transformers, "MultiVectorEncoder")
    with pytest.raises(MissingExtra, match="does not have; install a newer one"):
        load_reranker(str(folder))


def test_scores_that_are_not_numbers_are_refused(tmp_path: Path, unloaded: None) -> None:
    loaded = load_reranker(str(cross_encoder_folder(tmp_path / "nan")))
    with torch.no_grad():
        loaded._model.model.classifier.bias.fill_(float("nan"))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RerankerUnavailable, match="not one finite number a text"):
        loaded.scores(QUERY, TEXTS)


@pytest.mark.parametrize("scores", [[0.5, np.nan], [np.inf, 0.5], [0.5], [[0.5], [0.25]]])
def test_one_score_that_is_no_number_is_enough(tmp_path: Path, scores: list[Any]) -> None:
    files = reranker.RerankerFiles("own", tmp_path, "cross-encoder", "a" * 64)
    held: list[bool] = []

    def predict(pairs: Any, **options: Any) -> Any:
        held.append(scorer._using.locked())  # pyright: ignore[reportPrivateUsage]
        return given

    scorer, given = reranker.TextReranker(files, SimpleNamespace(predict=predict)), scores
    with pytest.raises(RerankerUnavailable, match="not one finite number a text"):
        scorer.scores(QUERY, TEXTS[:2])
    given = [0.5, 0.25]
    assert scorer.scores(QUERY, TEXTS[:2]).tolist() == given
    assert held == [True, True]  # its tokenizer serves one call at a time


def test_a_model_is_named_by_the_names_and_the_contents_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    digests = list[str]()
    for name, content in (("a.json", "1"), ("b.json", "1"), ("b.json", "2")):
        for file in folder.iterdir():
            file.unlink()
        (folder / name).write_text(content)
        digests.append(reranker._digest(folder))
    assert len({*digests}) == 3


def test_a_model_has_changed_where_a_files_name_size_or_time_has(tmp_path: Path) -> None:
    def state(name: str, content: str, at: int) -> object:
        folder = tmp_path / f"{name}{len(content)}{at}" / "model"
        folder.mkdir(parents=True)
        (folder / name).write_text(content)
        os.utime(folder / name, ns=(at, at))
        return [(file.name, size, time) for file, size, time in reranker.state_of(folder)]

    states = [state("a.json", "1", 1), state("b.json", "1", 1), state("a.json", "12", 1)]
    assert state("a.json", "1", 2) not in states
    assert states[0] not in states[1:]
