"""`CompiledEncoder` by a model of a few lines: what it is given, and what is loaded beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.word_tokenizers import of_words
from tokenizers import processors

from dsearch.encoder import EncoderIdentity
from dsearch.encoder import compiled as module
from dsearch.encoder.backends import Outputs, Tokens
from dsearch.encoder.compiled import CompiledEncoder

IDENTITY = EncoderIdentity("own", "", "abc", "mean", 20, "openvino", "float32", 2)


class Model:
    """Gives a constant for each text; what it was given."""

    def __init__(self) -> None:
        self.given: list[Tokens] = []

    def __call__(self, tokens: Tokens, *, states: bool = False) -> Outputs:
        self.given.append(tokens)
        return Outputs(np.ones((len(tokens["input_ids"]), 2), np.float32))


def made(model: Any = None, tokenizer: Any = None, **options: Any) -> CompiledEncoder:
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    given: dict[str, Any] = {
        "inputs": inputs,
        "padding": 7,
        "prompts": {},
        "identity": IDENTITY,
        "reference": torch.nn.Identity,
        **options,
    }
    return CompiledEncoder(model or Model(), (tokenizer or of_words()).to_str(), **given)


def test_short_texts_are_filled_up_with_the_models_token_and_masked() -> None:
    model = Model()
    made(model).encode_documents(["foo foo", "foo"])
    (tokens,) = model.given
    assert tokens["input_ids"].shape == (2, 4)
    short = int(np.argmin(tokens["attention_mask"].sum(1)))
    assert tokens["attention_mask"][short].tolist() == [1, 1, 1, 0]
    assert tokens["input_ids"][short, 3] == 7
    assert tokens["token_type_ids"][short].tolist() == [0] * 4
    assert 7 not in tokens["input_ids"][1 - short]


@pytest.mark.parametrize(("threads", "most"), [(1, 20), (2, 40), (100, 60)])
def test_batches_are_bounded_by_threads_and_by_memory(
    monkeypatch: pytest.MonkeyPatch, threads: int, most: int
) -> None:
    monkeypatch.setattr(module, "thread_budget", lambda: threads)
    monkeypatch.setattr(module, "_THREAD_TOKENS", 20)
    monkeypatch.setattr(module, "_BATCH_TOKENS", 60)
    model = Model()
    made(model).encode_documents(["foo foo"] * 30)  # of four tokens
    assert max(tokens["input_ids"].size for tokens in model.given) == most


def test_marks_are_known_where_there_is_one_at_each_end() -> None:
    whole = made().vocabulary
    assert (whole.first, whole.last) == tuple(of_words().encode("").ids)
    begun = of_words(
        post_processor=processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    )
    assert len(begun.encode("").ids) == 1
    one = made(tokenizer=begun).vocabulary
    assert (one.first, one.last) == (None, None)


def test_a_reference_that_a_search_loads_can_be_trained() -> None:
    encoder = made(reference=lambda: torch.nn.Linear(2, 2))
    with torch.inference_mode():
        loaded: Any = encoder.reference
    assert not any(parameter.is_inference() for parameter in loaded.parameters())
    assert encoder.reference is loaded
