"""`TextBatches`: texts as padded arrays of token ids, by `tokenizers` and numpy.

transformers converts each list of numbers in Python, which takes as long as tokenizing. `text_batches` gives
the short way only for a model whose own preparation gives the same, which it compares on a few texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsearch.encoder.tokens import FIELDS, padded_arrays

Features = dict[str, Any]

# Texts for which another preparation would differ: case, accents, scripts, marks, blanks.
_PROBES = ["A cat, İstanbul é 世界 🙂", "", "[SEP]<mask></s> x  y\n"]


class TextBatches:
    """Features of a batch of texts for a model.

    A call changes the truncation of the tokenizer, as one of transformers does, so it is not reentrant.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        max_tokens: limit above which texts are cut off.
        names: names of the arrays that the model takes, of `FIELDS`.
        padding: token that pads short texts.
        constants: features that are the same for all texts.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_tokens: int,
        *,
        names: Sequence[str],
        padding: int,
        constants: Mapping[str, Any],
    ):
        self._tokenizer, self._max_tokens = tokenizer, max_tokens
        self._names, self._padding = tuple(names), padding
        self._constants = dict(constants)

    def __call__(self, texts: Sequence[str]) -> Features:
        """Features of at least one text."""
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._max_tokens)
        encoded = self._tokenizer.encode_batch_fast(texts)
        width = max(len(encoding) for encoding in encoded)
        arrays = padded_arrays(encoded, self._names, self._padding, width)
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | self._constants


def text_batches(
    tokenizer: Any, max_tokens: int, prepare: Callable[[list[str]], Mapping[str, Any]]
) -> TextBatches | None:
    """Return the short way to the features of a model; None if it does not give what the model's own gives.

    Args:
        tokenizer: the fast tokenizer of the model.
        max_tokens: limit above which texts are cut off.
        prepare: the model's own preparation.
    """
    probes = (_PROBES[:1], _PROBES, [*_PROBES, "word " * (max_tokens + 1)])
    own = [prepare(list(texts)) for texts in probes]
    names = [name for name, value in own[0].items() if isinstance(value, torch.Tensor)]
    constants = {name: value for name, value in own[0].items() if name not in names}
    plain = all(isinstance(value, str | int | None) for value in constants.values())
    if not plain or not set(names) <= FIELDS.keys() or tokenizer.pad_token_id is None:
        return None
    short = TextBatches(
        tokenizer.backend_tokenizer,
        max_tokens,
        names=names,
        padding=tokenizer.pad_token_id,
        constants=constants,
    )
    same = all(_same(short(texts), features) for texts, features in zip(probes, own, strict=True))
    return short if same else None


def _same(features: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    return features.keys() == own.keys() and all(
        features[name].dtype == value.dtype and torch.equal(features[name], value)
        if isinstance(value, torch.Tensor)
        else features[name] == value
        for name, value in own.items()
    )
