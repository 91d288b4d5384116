"""The short way to the features of texts: the model's own, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.word_tokenizers import TEXTS, of_words
from transformers import PreTrainedTokenizerFast

from dsearch.encoder import Encoder, EncoderIdentity
from dsearch.encoder.text_batches import text_batches

WINDOW = 12
MARKS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
IDENTITY = EncoderIdentity("few", "", "0" * 64, "mean", WINDOW, "torch", "float32", 4)


def tokenizer_of(**options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=of_words(), **{**MARKS, **options})


class Model:
    """What an encoder uses of a sentence-transformers model to prepare texts."""

    device = torch.device("cpu")

    def __init__(self, change: Callable[[dict[str, Any]], Mapping[str, Any]] = dict, **options: Any):
        self.tokenizer = tokenizer_of(**options)
        self.prompts = {"document": "passage: "}
        self.change = change
        self.window = WINDOW
        self.calls: list[list[str]] = []

    def get_max_seq_length(self) -> int:
        return self.window

    def __getitem__(self, place: int) -> Model:
        return self

    def preprocess(self, texts: list[str]) -> Mapping[str, Any]:
        self.calls.append(texts)
        made = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.window, return_tensors="pt"
        )
        return self.change({**made, "modality": "text"})


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return list(one) == list(other) and all(
        torch.equal(one[name], value) if isinstance(value, torch.Tensor) else one[name] == value
        for name, value in other.items()
    )


MODEL = Model()


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_features_are_those_of_the_model(texts: list[str]) -> None:
    short = text_batches(MODEL.tokenizer, WINDOW, MODEL.preprocess)
    assert short is not None
    assert same(short(texts), MODEL.preprocess(texts))
    assert MODEL.tokenizer(texts, padding=False)["input_ids"][0]  # the tokenizer works on as before


@pytest.mark.parametrize(
    "model",
    [
        Model(lambda made: {**made, "input_ids": made["input_ids"] + 1}),
        Model(lambda made: {**made, "input_ids": made["input_ids"].int()}),
        Model(lambda made: {**made, "prompt_length": torch.tensor(3)}),
        Model(lambda made: {**made, "spans": [1, 2]}),
        Model(padding_side="left"),
        Model(truncation_side="left"),
    ],
)
def test_a_model_that_prepares_otherwise_has_none(model: Model) -> None:
    assert text_batches(model.tokenizer, WINDOW, model.preprocess) is None
    encoder = Encoder(model, IDENTITY)
    assert same(encoder._prepared(["foo"], "query"), model.preprocess(["foo"]))


def test_the_model_prepares_no_batch_of_its_own() -> None:
    model = Model()
    encoder = Encoder(model, IDENTITY)
    features = encoder._prepared(["foo", "bar foo"], "document")
    probes = len(model.calls)
    assert same(features, model.preprocess(["passage: foo", "passage: bar foo"]))
    encoder._prepared(["foo"], "query")
    assert len(model.calls) == probes + 1


def test_a_changed_tokenizer_or_window_is_followed() -> None:
    model = Model()
    encoder = Encoder(model, IDENTITY)

    def differs() -> bool:
        return not same(encoder._prepared(["foo bar " * 9], "query"), model.preprocess(["foo bar " * 9]))

    assert not differs()
    model.window = 7
    assert not differs()
    model.tokenizer.add_tokens(["bar foo"])
    assert not differs()
    model.tokenizer.padding_side = "left"
    assert not differs()
    assert encoder._batches is not None
    assert encoder._batches[1] is None


def test_a_model_of_images_and_a_slow_tokenizer_prepare_by_themselves() -> None:
    for change in ({"processor": object()}, {"tokenizer": SimpleNamespace(is_fast=False)}):
        model = Model()
        for name, value in change.items():
            setattr(model, name, value)
        model.preprocess = lambda texts: {"texts": texts}  # type: ignore[method-assign]
        assert Encoder(model, IDENTITY)._prepared(["foo"], "query") == {"texts": ["foo"]}
