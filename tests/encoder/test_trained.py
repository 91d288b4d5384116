"""Encoders of versions: exported in the background as the encoder they started from, torch until then."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.exported_encoders import TinyHome, need_openvino
from support.tiny_encoder import WORDS
from support.warm.processes import warm_start

from dsearch.encoder import (
    AutomaticEncoder,
    Encoder,
    EncoderChange,
    EncoderIdentity,
    EncoderTraining,
    LearningEncoder,
    automatic,
    load_encoder,
    trained,
    tuned,
    tuned_identity,
)
from dsearch.encoder.compiled import Exporting
from dsearch.encoder.export_cache import export_folder
from dsearch.encoder.trained import (
    KEPT,
    TrainedChange,
    forget_earlier,
    load_trained,
    trained_request,
)
from dsearch.encoder.weights import Weights, digest_of_file
from dsearch.errors import CorruptData

TEXTS = ["question 1 red", "answer 7", " ".join(WORDS * 4), "apple bread honey honey"]
WAIT_S = 300.0


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Processes that export start in milliseconds; those that were started."""
    started: list[Any] = []

    def start(command: list[str], *, start_new_session: bool, **options: Any) -> Any:
        started.append(command)
        return warm_start()(command, **options)

    monkeypatch.setattr(automatic, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    return started


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> TinyHome:
    need_openvino()
    home = TinyHome(tmp_path_factory.mktemp("trained"))
    home.load("openvino", "float32")  # the base is exported
    return home


def learned(home: TinyHome, seed: int = 0) -> EncoderChange:
    """A change of every weight."""
    learning = LearningEncoder(Encoder.load(home.encoder), EncoderTraining("all"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learning.learning():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return learning.change()


def in_file(home: TinyHome, change: EncoderChange, folder: Path) -> TrainedChange:
    file = folder / "weights.safetensors"
    save_file(dict(change.tensors), file)
    identity = tuned_identity(Encoder.load(home.encoder).identity, digest_of_file(file))
    return TrainedChange(home.encoder, file, {"method": "all", "rank": 16, "alpha": 32}, identity)


def test_an_export_is_of_the_trained_weights_and_of_the_settings_of_their_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(weights: str, settings: str) -> Path:
        monkeypatch.setattr(trained, "find_weights", lambda name: Weights(tmp_path, "", "base", settings))
        identity = EncoderIdentity("own+change", "", weights, "mean", 64, "torch", "float32", 8)
        change = TrainedChange("own", tmp_path / "weights.safetensors", {}, identity)
        return export_folder(trained_request(change, tmp_path))

    assert folder("one", "settings") == folder("one", "settings")
    assert len({folder("one", "settings"), folder("two", "settings"), folder("one", "others")}) == 3


def test_an_export_takes_over_and_is_found_again(home: TinyHome, tmp_path: Path) -> None:
    base = load_encoder(home.encoder, backend="auto", cache=home.cache)
    assert isinstance(base, AutomaticEncoder)
    change = learned(home)
    trained = in_file(home, change, tmp_path)
    exact = tuned(base, change, trained.identity)
    encoder = load_trained(base, trained, lambda: exact)
    assert isinstance(encoder, AutomaticEncoder)
    assert encoder.runs_by.name == "torch"
    assert encoder.wait()  # nothing runs before it is told to
    encoder.start()
    encoder.start()
    assert encoder.wait(WAIT_S)
    assert encoder.runs_by.name == "openvino", encoder.note
    assert encoder.identity == trained.identity

    def refuse() -> Any:
        raise AssertionError("torch is not needed")

    again = load_trained(base, trained, refuse)
    assert again.identity == trained.identity
    for served in (encoder, again):
        near = (exact.encode_queries(TEXTS) * served.encode_queries(TEXTS)).sum(1)
        assert near.min() >= 0.9999
        states = served.encode_tokens(TEXTS[:1], "query")[1][0].states  # type: ignore[attr-defined]
        assert (exact.encode_tokens(TEXTS[:1], "query")[1][0].states * states).sum(1).min() > 0.999
    assert not np.allclose(encoder.encode_queries(TEXTS), base.encode_queries(TEXTS), atol=0.01)
    assert encoder.embed(TEXTS[:1], "query").shape == (1, 16)  # by torch, with the change


def test_a_file_that_is_another_leaves_torch_and_says_why(home: TinyHome, tmp_path: Path) -> None:
    base = load_encoder(home.encoder, backend="auto", cache=home.cache)
    trained = in_file(home, learned(home, 1), tmp_path)
    exact = Encoder.load(home.encoder)
    save_file(dict(learned(home, 2).tensors), trained.file)
    with pytest.raises(CorruptData, match=r"is not the change of .* that was registered"):
        trained.load()
    encoder = load_trained(base, trained, lambda: exact)
    assert isinstance(encoder, AutomaticEncoder)
    encoder.start()
    assert encoder.wait(WAIT_S)
    assert encoder.runs_by.name == "torch"
    assert "is not the change of" in str(encoder.note)


def test_a_change_belongs_to_the_weights_of_its_base(home: TinyHome, tmp_path: Path) -> None:
    """The base may have become another under the same name."""
    change = in_file(home, learned(home), tmp_path)
    earlier = replace(change, identity=replace(change.identity, weights_sha256="0" * 64))
    with pytest.raises(CorruptData, match=r"is not the change of .* that was registered"):
        earlier.load()


def test_a_change_of_a_base_without_an_export_stays_with_torch(home: TinyHome, tmp_path: Path) -> None:
    exact = Encoder.load(home.encoder)
    trained = in_file(home, learned(home), tmp_path)
    assert load_trained(exact, trained, lambda: exact) is exact


def test_exports_of_earlier_changes_are_removed(home: TinyHome, tmp_path: Path) -> None:
    def request(digit: int) -> Exporting:
        weights = Weights(tmp_path, "", str(digit) * 64)
        return Exporting(f"model+{str(digit) * 12}", weights, None, tmp_path, lambda: None)  # type: ignore[arg-type, return-value]

    folders = [export_folder(request(digit)) for digit in range(KEPT + 2)]
    base = export_folder(replace(request(0), name="model"))
    for age, folder in enumerate([base, *reversed(folders)]):  # the last one made is the first by name
        folder.mkdir()
        os.utime(folder, (age, age))
    forget_earlier(request(0))
    assert set(tmp_path.iterdir()) == {base, *folders[:KEPT]}
