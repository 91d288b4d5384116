"""The demo's story: what training changed, by a stated rule, the losses too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.cli.commands import demo
from dsearch.cli.commands.demo import move_in_words, show_changes
from dsearch.corpus import PythonCorpus
from dsearch.engine import Collection, SearchEngine
from dsearch.training import sentences_of_corpus
from dsearch.types import Document

MOVE = re.compile(r"its document: (d\d+), place (\d+) → (\d+)\s+before: (.+)\s+after: +(.+)")
WORDS = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    draw = np.random.default_rng(0)

    def text() -> str:
        return " ".join(" ".join(draw.choice(WORDS, size=6)).capitalize() + "." for _ in range(6))

    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("t")
        collection.ingest([Document(f"d{n}", text()) for n in range(40)])
        yield collection


def test_held_out_sentences_show_what_rose_most_and_what_fell(
    collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    head = deepcopy(collection.head("v0"))
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():  # it changes many places, for better and for worse
        for parameter in head.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn(parameter.shape, generator=chance) * 0.1)
    show_changes(collection, collection.add_model(head, {}, parent="v0"))
    said = capsys.readouterr().err
    counts = re.search(
        r"(\d+) sentences that [^:]+: (\d+) find their document higher, (\d+) lower, (\d+) at the same", said
    )
    assert counts is not None
    sentences, rose, fell, stayed = map(int, counts.groups())
    assert 0 < rose + fell + stayed == sentences <= 60
    assert fell > 0
    moves = MOVE.findall(said)
    assert len(moves) == min(rose, 3) + 1
    gains = [1 / int(new) - 1 / int(old) for _, old, new, _, _ in moves]
    assert gains[:-1] == sorted(gains[:-1], reverse=True)
    assert gains[-1] < 0 < gains[0]
    assert said.index("Those that rose most, by 1/place (0 beyond place 100):") < said.index(
        "The one that fell most:"
    )
    for id, old, new, before, after in moves:  # the hits themselves, where the right one stands at its place
        for place, hits in ((int(old), before), (int(new), after)):
            ids = [hit.split()[1] for hit in hits.split(" · ")]
            assert len(ids) == 3
            assert (id in ids) == (place <= 3)
            assert place > 3 or ids[place - 1] == id


def test_a_sentence_that_did_not_improve_is_shown_where_none_fell(
    collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    show_changes(collection, "v0")
    said = capsys.readouterr().err
    assert "0 find their document higher, 0 lower" in said
    assert "Those that rose most" not in said
    assert "One that did not rise:" in said
    ((_, old, new, before, after),) = MOVE.findall(said)
    assert (old, before) == (new, after)


def test_a_document_beyond_the_last_place_is_said_to_be_there() -> None:
    assert move_in_words(4, 2) == "place 4 → 2"
    assert move_in_words(None, 57) == "not among the first 100 → place 57"
    assert move_in_words(7, None) == "place 7 → not among the first 100"
    assert move_in_words(None, None) == "not among the first 100"


def test_no_sentence_is_shown_that_training_has_learned(collection: Collection) -> None:
    learned = set(sentences_of_corpus(collection).texts)
    pairs = demo.held_out_sentences(collection)
    assert len(pairs) > 20  # though training learns two sentences of each document
    assert not learned & {text for text, _ in pairs}
    assert pairs == demo.held_out_sentences(collection)


@pytest.mark.parametrize("same", [True, False])
def test_what_was_trained_on_this_very_corpus_is_used_again(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    digest = sentences_of_corpus(collection).digest if same else "0" * 64
    head = deepcopy(collection.head("v0"))
    assert collection.add_model(head, {"data_sha256": digest}, parent="v0") == "v1"
    registered = SimpleNamespace(live=None, model="v2", version="v2", sentence="It stays.")
    learned = SimpleNamespace(
        register=lambda *_: registered,
        result=SimpleNamespace(record={"seconds": 1.0}, reason="no gain"),
    )
    monkeypatch.setattr("dsearch.training.run_training", lambda *_: learned)
    assert demo._train_once(collection) == ("v1" if same else "v2")


def test_what_is_served_trains_in_the_home_that_was_named(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Path, Any, Any]] = []
    monkeypatch.setattr("dsearch.corpus.python_corpus", lambda **_: PythonCorpus([], [], {}))
    monkeypatch.setattr(
        demo,
        "_show_demo",
        lambda engine, name, corpus, settings, *, serve: served.append(
            (engine.home.path, settings.home, settings.threads)
        ),
    )
    code, _, err = dsearch("demo", "--home", tmp_path / "other", "--threads", "1")
    assert code == 0, err
    [(opened, of_tasks, threads)] = served
    assert opened == of_tasks == tmp_path / "other"
    assert threads == 1
