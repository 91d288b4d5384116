"""Which queries of a batch are answered together: those that demand and exclude the same phrases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.index import ParsedQuery, Tokenizer, parse_query
from dsearch.types import Mode


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Queries of a batch with the same phrases.

    Attributes:
        numbers: which queries of the batch they are.
        phrases: what a document must hold and must not; without a text.
        mode: the legs. Where phrases leave no word to look for, all that they let through comes with equal
            weights: the dense leg, asked with zeros.
        texts: their words, without quotes, signs and what is excluded; None where no word is left.
    """

    numbers: list[int]
    phrases: ParsedQuery
    mode: Mode
    texts: list[str] | None


def grouped(
    queries: Sequence[str], mode: Mode, tokenizer: Tokenizer | None, *, operators: bool = True
) -> list[QueryGroup]:
    """The groups of a batch, in the order of their first queries.

    Args:
        queries: the batch.
        mode: the legs that were asked for.
        tokenizer: says what is a word to BM25; None takes everything for one.
        operators: whether quotes and signs in a text restrict.
    """
    parsed = [parse_query(query) if operators else ParsedQuery(query) for query in queries]
    found: dict[tuple[ParsedQuery, bool], list[int]] = {}
    for number, query in enumerate(parsed):
        phrases = ParsedQuery("", query.required, query.excluded)
        worded = not query.constrained or _has_words(query.text, mode, tokenizer)
        found.setdefault((phrases, worded), []).append(number)
    return [
        QueryGroup(
            numbers=numbers,
            phrases=phrases,
            mode=mode if worded else "dense",
            texts=[parsed[number].text for number in numbers] if worded else None,
        )
        for (phrases, worded), numbers in found.items()
    ]


def states_of(
    groups: Sequence[QueryGroup],
    encode: Callable[[list[str]], Float[Tensor, "worded encoder_dim"]],
    dimension: int,
) -> Float[Tensor, "batch encoder_dim"]:
    """The embedding of each query's words, all from one call of the encoder; zeros without words."""
    if len(groups) == 1 and groups[0].texts is not None:  # in the order of the batch
        return encode(groups[0].texts)
    states = torch.zeros(sum(len(group.numbers) for group in groups), dimension)
    texts = {
        number: text
        for group in groups
        if group.texts is not None
        for number, text in zip(group.numbers, group.texts, strict=True)
    }
    if texts:
        states[list(texts)] = encode(list(texts.values()))
    return states


def _has_words(text: str, mode: Mode, tokenizer: Tokenizer | None) -> bool:
    if not text.strip():
        return False
    return mode != "keyword" or tokenizer is None or bool(next(tokenizer.terms([text])))
